"""The data plane: Spark micro-batches that copy record batches as bytes, and the channel that controls them.

`driver` runs in the worker process: the Spark context, lanes of micro-batches, progress. `executor` runs in Spark's
Python workers: fetch, produce, commit. `spec` and `channel` are shared.
"""
