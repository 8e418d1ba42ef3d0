"""Tasks, each on its own thread.

base          the lifecycle of all tasks: paused, started, stopped, cancelled, failed
conversion    the converters of a task, and conversion of the records of source tasks
source        poll, transform, convert, produce; at-least-once
exactly_once  the same in transactions
submitted     offsets of source tasks that may be committed
sink          poll the consumer, put; rebalances and pauses
sink_records  conversion and transformation of consumed records, and the batch for the plugin
sink_offsets  the plugin's requests, and commits of the consumer group's offsets
"""

from mm2.connect.runtime.tasks.source import OwnershipGuard

__all__ = ["OwnershipGuard"]
