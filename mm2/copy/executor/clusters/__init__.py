"""What an executor knows about both clusters: their brokers, leaders and topic ids."""
