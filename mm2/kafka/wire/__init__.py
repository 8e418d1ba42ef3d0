"""The hot path's own encoding of Fetch and Produce, and a channel that moves whole frames without copying them."""
