"""Spark's Python daemon with the copier imported in advance, so that every forked worker starts with it."""

from __future__ import annotations

from pyspark.daemon import manager

import mm2.copy.executor.task  # noqa: F401
from mm2.allocator import collect_less_often

if __name__ == "__main__":
    collect_less_often()
    manager()
