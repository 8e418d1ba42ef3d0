"""One partition between Fetch and Produce: its batches are changed, merged, split and queued. No I/O."""
