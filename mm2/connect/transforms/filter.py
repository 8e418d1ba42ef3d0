"""Drops records (org.apache.kafka.connect.transforms.Filter)."""

from __future__ import annotations

from mm2.config.configdef import ConfigDef
from mm2.connect.api.transformation import Record, Transformation
from mm2.connect.transforms.configured import Configured


class Filter(Configured, Transformation):
    """Drops every record; use it with a predicate."""

    CONFIG = ConfigDef()

    def apply(self, record: Record) -> Record | None:
        return None
