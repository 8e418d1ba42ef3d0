"""Reads of topics outside of the data path: blocking Fetch requests, and topics that are read completely."""
