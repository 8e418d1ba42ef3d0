"""Connections to the brokers of a cluster: one connection, the pool, metadata and coordinators."""
