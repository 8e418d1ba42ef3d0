"""A task's offset reader while the offsets topic cannot be read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import pytest

from mm2.connect.api import ConnectError
from mm2.connect.stores import offset_store
from mm2.connect.stores.offset_store import ConnectorOffsetReader, OffsetStore
from mm2.kafka.errors import AuthenticationFailure, KafkaFailure, TimeoutFailure

FOUND: list[dict[str, Any] | None] = [{"offset": 42}]


class Store:
    """Fails with the configured errors, then succeeds."""

    def __init__(self, *failures: KafkaFailure) -> None:
        self.failures = list(failures)
        self.reader: ConnectorOffsetReader | None = None

    def offsets(self, _connector: str, _partitions: Sequence[Mapping[str, Any]], _timeout_s: float) -> Any:
        if self.failures:
            raise ConnectError("the offsets cannot be read") from self.failures.pop(0)
        if self.reader is not None:
            self.reader.close()
        return FOUND


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offset_store, "_RETRY_S", 0.01)


def reader(store: Store) -> ConnectorOffsetReader:
    return ConnectorOffsetReader(cast(OffsetStore, cast(Any, store)), "c")


def test_retriable_errors_are_retried() -> None:
    assert reader(Store(TimeoutFailure("late"), TimeoutFailure("late"))).offsets([{}]) == FOUND


def test_other_errors_fail_the_task() -> None:
    with pytest.raises(ConnectError, match="cannot be read"):
        reader(Store(AuthenticationFailure("no"))).offsets([{}])


def test_a_closed_reader_ends_the_wait() -> None:
    store = Store()
    store.reader = reader(store)
    with pytest.raises(ConnectError, match="cancelled"):
        store.reader.offsets([{}])
    with pytest.raises(ConnectError, match="cancelled"):
        store.reader.offsets([{}])
