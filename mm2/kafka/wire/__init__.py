"""Fetch and Produce encoding of the hot path, and a channel that transfers whole frames without copying them."""
