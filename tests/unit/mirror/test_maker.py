"""How a new leader updates the connectors of its flow from its file."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, cast

import pytest

from mm2.config.mirrormaker import SourceAndTarget
from mm2.connect.api import ConnectError
from mm2.connect.errors import NotLeader
from mm2.connect.herder.distributed import DistributedHerder
from mm2.connect.stores.config_state import ClusterConfigState
from mm2.connect.stores.config_store import PrivilegedWriteError
from mm2.kafka.errors import TimeoutFailure
from mm2.mirror import maker
from mm2.mirror.maker import Configurer
from tests.support.waiting import wait_until

WANTED = {"one": {"name": "one"}, "two": {"name": "two"}}


class Configs:
    """The part of a herder that is used here; the first writes raise ``failures``."""

    def __init__(self, *failures: Exception, stored: Mapping[str, Mapping[str, str]] | None = None) -> None:
        self.failures = list(failures)
        self.stored = dict(stored or {})
        self.writes: list[str] = []

    def configs(self) -> ClusterConfigState:
        return ClusterConfigState(connector_configs=self.stored)

    def put_connector_config(self, name: str, config: Mapping[str, str], allow_replace: bool) -> Future[bool]:
        assert allow_replace
        self.writes.append(name)
        future: Future[bool] = Future()
        if self.failures:
            future.set_exception(self.failures.pop(0))
        else:
            self.stored[name] = config
            future.set_result(True)
        return future


def write_failure() -> ConnectError:
    error = ConnectError("Failed to write")
    error.__cause__ = TimeoutFailure("too late")
    return error


@pytest.fixture
def configure(monkeypatch: pytest.MonkeyPatch) -> Callable[[Configs], None]:
    monkeypatch.setattr(maker, "_CONFIGURE_AGAIN_S", 0.01)
    run = Configurer(SourceAndTarget("A", "B"), WANTED)
    return lambda herder: run(cast(DistributedHerder, cast(Any, herder)))


def test_only_changed_configs_are_written(configure: Callable[[Configs], None]) -> None:
    herder = Configs(stored={"one": WANTED["one"]})
    configure(herder)
    assert herder.writes == ["two"]


def test_a_write_with_a_retriable_error_is_retried(configure: Callable[[Configs], None]) -> None:
    herder = Configs(write_failure(), PrivilegedWriteError("no producer, since a zombie has fenced it"))
    configure(herder)
    wait_until(lambda: herder.stored == WANTED, 30, what="the configs", interval_s=0.01)
    assert sorted(herder.writes) == ["one", "one", "two", "two"]


@pytest.mark.parametrize("error", [NotLeader("no", None), ConnectError("the configuration is invalid")])
def test_other_rejections_are_final(configure: Callable[[Configs], None], error: Exception) -> None:
    herder = Configs(error)
    configure(herder)
    time.sleep(0.1)
    assert herder.writes == ["one", "two"]
