"""The driver's side of copying: the Spark context, micro-batches, and the progress that executors report."""
