"""Kafka Connect's runtime in Python: herder, group membership, stores, worker, tasks, plugins, converters.

Byte-compatible with Java Connect 4.3.0 on every internal topic and in the group protocol, so Java and Python workers
can be members of one group. The package does not depend on MirrorMaker or Spark: connectors are registered in
``mm2.connect.plugins``.
"""
