"""One task on a thread of its own.

base          the life that all have: paused, started, stopped, cancelled, failed
source        poll, transform, convert, produce; offsets at least once
exactly_once  the same in transactions
sink          poll the consumer, convert, transform, put; offsets of the consumer group
"""

from mm2.connect.runtime.tasks.source import OwnershipGuard

__all__ = ["OwnershipGuard"]
