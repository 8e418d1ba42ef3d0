"""What GET /metrics answers: the families of all collectors, in the format that the scraper takes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client import Metric as Family
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from mm2.metrics.metric import Sheet

#: Writes down what it knows.
Writer = Callable[[Sheet], None]


class _Written(Collector):
    def __init__(self, writers: Iterable[Writer]) -> None:
        self._writers = tuple(writers)

    def collect(self) -> Iterator[Family]:
        """See prometheus_client."""
        # One sheet for all, so that what several tell of one metric stands together, as the format wants it.
        sheet = Sheet()
        for write in self._writers:
            write(sheet)
        yield from sheet.families()

    def describe(self) -> list[Family]:
        """Nothing beforehand: the library would ask for everything once, only to learn the names."""
        return []


class Exposition:
    """Metrics of ``writers``, and ``process_…`` of this process. Each answer is made when it is asked for."""

    def __init__(self, *writers: Writer) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        ProcessCollector(registry=self._registry)
        self._registry.register(_Written(writers))

    def answer(self, accept: str | None) -> tuple[bytes, str]:
        """Body and content type, by the request's ``Accept``: OpenMetrics for who asks for it, else the text format."""
        encode, content_type = choose_encoder(accept or "")
        return encode(self._registry), content_type


PATH: Final = "metrics"
"""First segment of where it is served."""
