"""The effect of single settings of a worker or a connector, compared with that of their defaults."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from mm2.config.keys.worker_keys import WorkerConfig
from mm2.config.providers import ConfigTransformerResult
from mm2.connect.api import ConnectError, DataError
from mm2.connect.errors import BadRequest, Forbidden
from mm2.connect.herder.internal_requests import SessionKeys
from mm2.connect.herder.lifecycle import Reloads
from mm2.connect.herder.request_queue import NEVER
from mm2.connect.plugins import Plugins, VersionedPluginError
from mm2.connect.request_signing import ALGORITHM_HEADER, RequestSignature, SessionKey, signature_headers
from mm2.connect.runtime.task_building import TaskStart
from mm2.connect.runtime.tasks.conversion import build_converters
from mm2.connect.runtime.tasks.source import WorkerSourceTask
from mm2.connect.runtime.worker import Worker
from mm2.connect.stores.config_state import ConnectorTaskId, Props, TargetState
from mm2.connect.stores.offset_store import FileOffsetStore
from tests.unit.connect.herder.test_internal_requests import Leader, leader
from tests.unit.connect.plugin_folders import write_files
from tests.unit.connect.task_parts import RecordingListener
from tests.unit.connect.test_herder import herder

BYTES = "org.apache.kafka.connect.converters.ByteArrayConverter"
JSON = "org.apache.kafka.connect.json.JsonConverter"
TASK = ConnectorTaskId("c", 0)
FILES = {"plugin.path": "libs/connect-file-4.3.0.jar"}
FILE_SOURCE = {"connector.class": "FileStreamSource", "file": "f", "topic": "t"}
MIRROR_SOURCE = {"connector.class": "org.apache.kafka.connect.mirror.MirrorSourceConnector"}

__all__ = ["leader"]  # the fixture


def worker_config(**settings: str) -> WorkerConfig:
    return WorkerConfig(
        {
            "bootstrap.servers": "127.0.0.1:1",
            "group.id": "g",
            "key.converter": BYTES,
            "value.converter": BYTES,
            **{f"{store}.storage.topic": store for store in ("config", "offset", "status")},
            **settings,
        }
    )


def worker(**settings: str) -> Worker:
    return Worker("w", worker_config(**settings), Plugins(FILES), FileOffsetStore(Path("unused")), cluster_name="T")


# -- the group and its config topic


@pytest.mark.parametrize(
    ("protocol", "offered"),
    [
        (None, ["sessioned", "compatible", "default"]),
        ("compatible", ["compatible", "default"]),
        ("eager", ["default"]),
    ],
)
def test_a_worker_offers_the_group_its_connect_protocol(protocol: str | None, offered: list[str]) -> None:
    instance = herder(**({} if protocol is None else {"connect.protocol": protocol}))
    assert [name for name, _ in instance._member._prepare_join()()] == offered


@pytest.mark.parametrize(("settings", "limit_s"), [({}, 3), ({"worker.sync.timeout.ms": "1234"}, 1.234)])
def test_the_config_topic_is_read_for_worker_sync_timeout_ms(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, str], limit_s: float
) -> None:
    instance, limits_s = herder(**settings), list[float]()
    monkeypatch.setattr(instance._config_store, "refresh", limits_s.append)
    instance._view.refresh()
    assert limits_s == [limit_s]


@pytest.mark.parametrize(("settings", "pause_s"), [({}, 300), ({"worker.unsync.backoff.ms": "1234"}, 1.234)])
def test_a_worker_that_cannot_catch_up_stays_out_of_the_group_for_worker_unsync_backoff_ms(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, str], pause_s: float
) -> None:
    """Only with the eager protocol, as in Java."""
    instance, pauses_s = herder(**{"connect.protocol": "eager"}, **settings), list[float]()
    monkeypatch.setattr(instance._view._stopping, "wait", pauses_s.append)
    instance._view.back_off()
    assert pauses_s == [pause_s]


@pytest.mark.parametrize(("settings", "grace_s"), [({}, 5), ({"task.shutdown.graceful.timeout.ms": "1234"}, 1.234)])
def test_a_task_that_does_not_stop_is_cancelled_after_the_graceful_timeout(
    settings: dict[str, str], grace_s: float
) -> None:
    class Stuck:
        id = TASK

        def __init__(self) -> None:
            self.calls: list[float] = []

        def stop(self) -> None:
            return

        def await_stop(self, timeout_s: float) -> bool:
            self.calls.append(timeout_s)
            return False

        def cancel(self) -> None:
            self.calls.append(-1)

    instance, stuck = worker(**settings), Stuck()
    instance._tasks[TASK] = cast(Any, stuck)
    instance.stop_tasks([TASK])
    waited_s, cancelled = stuck.calls
    assert grace_s - 1 < waited_s <= grace_s
    assert cancelled == -1


def test_topics_of_a_connector_can_be_reset_unless_it_is_not_allowed() -> None:
    herder().reset_connector_topics("c")
    with pytest.raises(Forbidden, match="Topic tracking reset is disabled"):
        herder(**{"topic.tracking.allow.reset": "false"}).reset_connector_topics("c")


# -- requests between workers

SHA512 = {
    "inter.worker.signature.algorithm": "HmacSHA512",
    "inter.worker.verification.algorithms": "HmacSHA256,HmacSHA512",
}


@pytest.mark.parametrize(("settings", "algorithm"), [({}, "HmacSHA256"), (SHA512, "HmacSHA512")])
def test_requests_are_signed_with_the_signature_algorithm(
    leader: Leader, settings: dict[str, str], algorithm: str
) -> None:
    requests = herder(**settings)._internal_requests
    requests.fence(leader.url, "c", SessionKey(bytes(32), "HmacSHA256", 0))
    ((_, _, headers),) = leader.asked
    assert headers[ALGORITHM_HEADER.lower()] == algorithm


@pytest.mark.parametrize(("settings", "accepted"), [({}, False), (SHA512, True)])
def test_signatures_are_verified_with_the_verification_algorithms(settings: dict[str, str], accepted: bool) -> None:
    key = SessionKey(bytes(32), "HmacSHA256", 0)
    keys = SessionKeys(worker_config(**settings), lambda: key, lambda: True)
    signature = RequestSignature.from_headers(b"[]", signature_headers(key, b"[]", "HmacSHA512"))
    if accepted:
        keys.verify(signature, is_permitted=False)
    else:
        with pytest.raises(BadRequest, match="HmacSHA512"):
            keys.verify(signature, is_permitted=False)


# -- overrides of client settings

OVERRIDE = {**FILE_SOURCE, "producer.override.acks": "1"}


@pytest.mark.parametrize(
    ("settings", "allowed"),
    [
        ({}, True),
        ({"connector.client.config.override.policy": "None"}, False),
        ({"connector.client.config.override.policy": "Allowlist"}, False),
        (
            {
                "connector.client.config.override.policy": "Allowlist",
                "connector.client.config.override.allowlist": "acks",
            },
            True,
        ),
    ],
    ids=["default", "none", "empty list", "list"],
)
def test_the_policy_of_the_worker_decides_on_overrides_of_a_connector(settings: dict[str, str], allowed: bool) -> None:
    instance = worker(**settings)
    if allowed:
        assert instance.producer_props(TASK, OVERRIDE)["acks"] == "1"
    else:
        with pytest.raises(ConnectError, match=r"policy does not allow 'acks' to be overridden"):
            instance.producer_props(TASK, OVERRIDE)


# -- converters


def converted(
    part: str, worker_props: Mapping[str, str], connector: Mapping[str, str], plugins: Plugins
) -> bytes | None:
    """What a task's converters make of a text in this part of a record."""
    base = {**dict.fromkeys(("key.converter", "value.converter", "header.converter"), BYTES), **worker_props}
    made = build_converters(plugins, connector, None, base, lambda key: base[key])
    if part == "header":
        return made.header.from_connect_header("t", "h", None, "text")
    return getattr(made, part).from_connect_data("t", (), None, "text")  # type: ignore[no-any-return]


@pytest.mark.parametrize("part", ["key", "value", "header"])
@pytest.mark.parametrize("of_connector", [False, True], ids=["worker", "connector"])
def test_records_are_converted_by_the_worker_s_or_the_connector_s_converter(part: str, of_connector: bool) -> None:
    with pytest.raises(DataError, match="ByteArrayConverter accepts only bytes"):
        converted(part, {}, {}, Plugins())
    given = {f"{part}.converter": JSON, f"{part}.converter.schemas.enable": "false"}
    props: tuple[dict[str, str], dict[str, str]] = ({}, given) if of_connector else (given, {})
    assert converted(part, *props, Plugins()) == b'"text"'


VERSIONED = """
from mm2.connect.api import Converter, HeaderConverter
from mm2.connect.files import FileStreamSourceConnector

class AcmeConverter(Converter):
    def version(self):
        return "{0}"
    def from_connect_data(self, topic, headers, schema, value):
        return b"{0}"
    def to_connect_data(self, topic, headers, data):
        raise NotImplementedError

class AcmeHeaderConverter(HeaderConverter):
    def version(self):
        return "{0}"
    def config(self):
        raise NotImplementedError
    def from_connect_header(self, topic, key, schema, value):
        return b"{0}"
    def to_connect_header(self, topic, key, data):
        raise NotImplementedError

class AcmeSourceConnector(FileStreamSourceConnector):
    def version(self):
        return "{0}"
"""


@pytest.fixture
def versions(tmp_path: Path) -> Plugins:
    """Plugins in versions 1.0 and 2.0."""
    for version in ("1.0", "2.0"):
        write_files(tmp_path / version, {"acme.py": VERSIONED.format(version)})
    return Plugins({"plugin.path": str(tmp_path), "plugin.discovery": "only_scan"})


@pytest.mark.parametrize("part", ["key", "value", "header"])
@pytest.mark.parametrize("of_connector", [False, True], ids=["worker", "connector"])
def test_records_are_converted_by_the_requested_version_of_a_converter(
    versions: Plugins, part: str, of_connector: bool
) -> None:
    name = "acme.AcmeHeaderConverter" if part == "header" else "acme.AcmeConverter"
    for version, expected in (({}, b"2.0"), ({f"{part}.converter.plugin.version": "[1.0,2.0)"}, b"1.0")):
        given = {f"{part}.converter": name, **version}
        props: tuple[dict[str, str], dict[str, str]] = ({}, given) if of_connector else (given, {})
        assert converted(part, *props, versions) == expected


def test_a_connector_runs_in_the_requested_version(versions: Plugins) -> None:
    props = {"connector.class": "acme.AcmeSourceConnector"}
    assert versions.new_connector(props).version() == "2.0"
    assert versions.new_connector({**props, "connector.plugin.version": "[1.0,2.0)"}).version() == "1.0"


def test_a_mirror_connector_only_runs_in_its_version() -> None:
    assert Plugins().new_connector(MIRROR_SOURCE)
    with pytest.raises(VersionedPluginError, match=r"version range \[99,\)"):
        Plugins().new_connector({**MIRROR_SOURCE, "connector.plugin.version": "[99,)"})


# -- secrets that expire


@pytest.mark.parametrize("connector", [FILE_SOURCE, MIRROR_SOURCE], ids=["other", "mirror"])
def test_a_connector_is_restarted_when_a_secret_expires_unless_config_action_reload_is_none(
    monkeypatch: pytest.MonkeyPatch, connector: dict[str, str]
) -> None:
    class Scheduled:
        def add_done_callback(self, _callback: object) -> None:
            return

        def cancel(self) -> None:
            return

    instance, restarts = worker(), list[tuple[str, float]]()
    expiring = ConfigTransformerResult({}, {"path": 2000})
    monkeypatch.setattr(instance, "resolution", lambda _props: expiring)

    def restart(name: str, delay_s: float) -> Any:
        restarts.append((name, delay_s))
        return Scheduled()

    reloads = Reloads(instance, restart)
    reloads.schedule("off", {**connector, "config.action.reload": "none"})
    reloads.schedule("on", connector)
    assert restarts == [("on", 2.0)]


def test_a_scheduled_restart_is_withdrawn_when_the_connector_starts_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise each start would add a restart for each time to live, and one would follow config.action.reload=none."""
    instance, restarts = herder(), list[str]()
    monkeypatch.setattr(instance.worker, "resolution", lambda _props: ConfigTransformerResult({}, {"path": 1}))
    monkeypatch.setattr(instance, "_require_own_connector", restarts.append)
    reloads = instance._starts.reloads
    for _ in range(3):
        reloads.schedule("on", FILE_SOURCE)
        reloads.schedule("off", FILE_SOURCE)
    reloads.schedule("off", {**FILE_SOURCE, "config.action.reload": "none"})
    while instance._requests.run_due(lambda: False) != NEVER:
        time.sleep(0.001)
    assert restarts == ["on"]


def test_a_source_task_reads_its_secrets_again_from_its_context(tmp_path: Path) -> None:
    """As sink tasks, and Java's source tasks, do."""
    secrets = tmp_path / "secrets"
    secrets.write_text("password=old")
    provider = "org.apache.kafka.common.config.provider.FileConfigProvider"
    instance = worker(**{"config.providers": "file", "config.providers.file.class": provider})
    stored: Props = {
        **FILE_SOURCE,
        "name": "c",
        "task.class": "FileStreamSourceTask",
        "secret": f"${{file:{secrets}:password}}",
    }
    start = TaskStart(TASK, stored, stored, 1, TargetState.STARTED, RecordingListener(), lambda _topic: None)
    task = instance._builder.build(start)
    assert isinstance(task, WorkerSourceTask)
    configs = task._context.configs
    assert dict(configs) == {**stored, "secret": "old"}
    secrets.write_text("password=new")
    assert (configs["secret"], configs.get("other"), len(configs)) == ("new", None, 6)
