"""From the source: Fetch requests, their state for each partition, and the limit of their rate."""
