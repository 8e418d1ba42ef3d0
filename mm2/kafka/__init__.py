"""Kafka client: connections with deadlines, a pool per cluster, admin calls, record batches, Fetch and Produce.

Admin calls return a result or an error per item. The protocol schemas are those of kafka-python; its event loop and its
clients are not used.
"""
