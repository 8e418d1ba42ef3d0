"""Requests of the hot path as bytes: Fetch, Produce, WriteTxnMarkers, Metadata."""
