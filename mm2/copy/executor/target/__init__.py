"""What is done on the target beside copying: gaps are filled, dead letters written, logs at rest compared."""
