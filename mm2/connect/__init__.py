"""Kafka Connect's runtime in Python: herder, group membership, stores, worker, tasks, plugins, converters.

Byte-compatible with Java Connect 4.3.0 on every internal topic and in the group protocol, so both can be members of
one group. Knows neither MirrorMaker nor Spark: connectors reach it by registration in ``mm2.connect.plugins``.
"""
