"""Notes in the ledgers of a flow: promotions, answers of the source, a replaced source, partitions not copied yet."""
