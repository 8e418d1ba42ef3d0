"""What the metrics are called and what they mean, and how a scrape is told them. Knows nothing of where they come from."""
