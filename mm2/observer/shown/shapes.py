"""Views as JSON (`mm2.codec`): fields have the names of `mm2.observer.views`, unknown values are null."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Final

from mm2.codec import encode
from mm2.observer.views import FlowView, GroupView, PartitionView

#: Lists of a flow that are returned page by page.
_PAGED: Final = ("partitions", "groups")


def flow_json(flow: FlowView) -> dict[str, Any]:
    """A flow with the number of its partitions and groups instead of the lists; what was not read is null."""
    made = {
        field.name: encode(getattr(flow, field.name)) for field in dataclasses.fields(flow) if field.name not in _PAGED
    }
    counts = {name: len(getattr(flow, name)) for name in _PAGED}
    return {"name": flow.name, **made, **counts, **dict.fromkeys(flow.unread)}


def page_json(rows: Sequence[Any], offset: int, limit: int) -> dict[str, Any]:
    """A page of ``rows``, and their total number."""
    return {"total": len(rows), "offset": offset, "rows": encode(list(rows[offset : offset + limit]))}


def chosen_partitions(
    flow: FlowView, search: str, states: Sequence[str], order: str, *, descending: bool
) -> list[PartitionView]:
    """Partitions whose topic or topic-partition contains ``search`` and whose state is one of ``states`` (none: any).

    ``order`` is the name of a field. Unknown values are last. Raises ValueError for an invalid order.
    """
    rows = [
        view
        for view in flow.partitions
        if (not search or search in f"{view.topic}-{view.partition}") and (not states or str(view.state) in states)
    ]
    return _ordered(rows, order, _PARTITION_ORDERS, descending=descending)


def chosen_groups(flow: FlowView, search: str, order: str, *, descending: bool) -> list[GroupView]:
    """Groups whose id or topic contains ``search``; see `chosen_partitions`."""
    rows = [view for view in flow.groups if not search or search in view.group or search in view.topic]
    return _ordered(rows, order, _GROUP_ORDERS, descending=descending)


_PARTITION_ORDERS: Final = frozenset(
    {
        "topic",
        "state",
        "since_ms",
        "position",
        "lag_records",
        "lag_bytes",
        "lag_seconds",
        "records_per_s",
        "bytes_per_s",
        "task",
    }
)
_GROUP_ORDERS: Final = frozenset({"group", "topic", "source_offset", "translated", "target_offset", "reason"})


def _ordered(rows: list[Any], order: str, known: frozenset[str], *, descending: bool) -> list[Any]:
    if order not in known:
        message = f"order is {order!r}; it may be {', '.join(sorted(known))}"
        raise ValueError(message)

    def by(row: Any) -> Any:
        return getattr(row, order)

    unknown: Callable[[Any], bool] = lambda row: by(row) is None  # noqa: E731
    known_rows = sorted((row for row in rows if not unknown(row)), key=by, reverse=descending)
    return [*known_rows, *filter(unknown, rows)]
