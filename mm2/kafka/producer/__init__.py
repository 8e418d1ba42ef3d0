"""The control plane's producer, requests to the transaction coordinator, and filler batches."""
