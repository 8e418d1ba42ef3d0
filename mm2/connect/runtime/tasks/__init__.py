"""Tasks, each on its own thread.

base          the lifecycle of all tasks: paused, started, stopped, cancelled, failed
source        poll, transform, convert, produce; at-least-once
exactly_once  the same in transactions
sink          poll the consumer, convert, transform, put; commit offsets of the consumer group
"""

from mm2.connect.runtime.tasks.source import OwnershipGuard

__all__ = ["OwnershipGuard"]
