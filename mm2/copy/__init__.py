"""The data plane: Spark micro-batches that copy record batches as bytes, and the channel that steers them.

On the driver: `engine` (Spark and the channel server), `lane` (one micro-batch after another, handed over without a gap).
On the executor: `executor` (the task body), `copier` (what ties it together), `source` (inbox of a broker), `sink`
(outbox of a broker), `cursor` (one partition on its way). Between them: `spec` and `channel`.
"""
