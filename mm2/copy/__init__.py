"""The data plane: Spark micro-batches that copy record batches as bytes, and the channel that steers them.

`driver` runs in the worker process: Spark, one micro-batch after another, what is reported. `executor` runs in Spark's
Python workers: read, write, commit. `spec` and `channel` lie between the two.
"""
