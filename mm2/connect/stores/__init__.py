"""Connect's three shared stores, each a compacted topic folded into memory: configs, statuses, source offsets.

Every store comes as a pure fold (record in, state and events out) and a thin shell around ``mm2.kafka.log``.
"""
