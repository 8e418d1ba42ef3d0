"""The response to GET /metrics: the metric families of all collectors, in the format that the scraper accepts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client import Metric as Family
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from mm2.metrics.metric import Sheet

#: Writes its metrics to a sheet.
Writer = Callable[[Sheet], None]


class _Written(Collector):
    def __init__(self, writers: Iterable[Writer]) -> None:
        self._writers = tuple(writers)

    def collect(self) -> Iterator[Family]:
        """See prometheus_client."""
        # One sheet for all writers: the format requires that all samples of a metric are adjacent.
        sheet = Sheet()
        for write in self._writers:
            write(sheet)
        yield from sheet.families()

    def describe(self) -> list[Family]:
        """Return nothing: the library would otherwise collect all values once, only to learn the names."""
        return []


class Exposition:
    """Metrics of ``writers``, and ``process_…`` of this process, collected at each request."""

    def __init__(self, *writers: Writer) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        ProcessCollector(registry=self._registry)
        self._registry.register(_Written(writers))

    def answer(self, accept: str | None) -> tuple[bytes, str]:
        """Body and content type. OpenMetrics if the request's ``Accept`` asks for it, else the text format."""
        encode, content_type = choose_encoder(accept or "")
        return encode(self._registry), content_type


PATH: Final = "metrics"
"""The first path segment of the resource."""
