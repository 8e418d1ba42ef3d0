"""The driver's side of copying: the Spark context, lanes of micro-batches, and the progress that executors report."""
