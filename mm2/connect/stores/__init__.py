"""Connect's three shared stores, each a compacted topic folded into memory: configs, statuses, source offsets.

Each store consists of a pure fold (records in, state and events out) and a thin I/O layer on ``mm2.kafka.readers.log``.
"""
