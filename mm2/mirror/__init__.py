"""MirrorMaker 2 on the Connect runtime: its connectors, tasks, replication policies and filters.

Topic naming and filters, the source, checkpoint and heartbeat connectors with their tasks, the translation of group
offsets, and the driver that runs one herder per replication flow.
"""
