"""MirrorMaker 2 on top of the Connect runtime: how topics are named and chosen, the source, checkpoint and heartbeat
connectors with their tasks, the translation of group offsets, and the driver that runs one herder per flow.
"""
