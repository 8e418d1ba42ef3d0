"""Every key of the mirror connectors and of the worker, with values of every sort, given to Java and to this project.

`python -m tests.systems.key_sweep FILE` writes one table: way, definition, key, what was given, both results, and the
verdict: `same`, a reason of :data:`INTENDED`, or `DIFFERENT`. Ways: ``validate`` and ``create`` are requests to the
workers of both; ``start`` is what a connector does with its configuration before it connects; ``file`` is a file of
MirrorMaker; ``worker`` is a worker's file.
"""

from __future__ import annotations

import csv
import json
import re
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TextIO

from mm2.config.configdef import ConfigDef, Type
from mm2.config.definitions.values import show
from mm2.config.keys.key_effects import check_effects, worker_uses
from mm2.config.keys.legacy_keys import without_legacy_keys
from mm2.config.keys.mirror_keys import (
    MIRROR_CHECKPOINT_CONFIG,
    MIRROR_HEARTBEAT_CONFIG,
    MIRROR_SOURCE_CONFIG,
    OWN_CONFIG,
)
from mm2.config.keys.worker_keys import DISTRIBUTED_CONFIG, WorkerConfig
from mm2.config.mirrormaker import MirrorMakerConfig
from mm2.connect.plugins import Plugins
from mm2.connect.rest.settings import RestSettings
from mm2.mirror.common.connector import MirrorConnector
from mm2.mirror.common.plugins import connect_plugins
from mm2.mirror.process.plans import plan_flows
from mm2.sandbox.kafka import LocalKafka
from tests.integration.java_source import run_source
from tests.systems.workers import DistributedWorker, JavaDistributedWorker, Rest, distributed_props

_ORACLE: Final = Path(__file__).parents[1] / "integration" / "java" / "KeySweep.java"
_MIRROR: Final = "org.apache.kafka.connect.mirror"
_CONVERTER: Final = "org.apache.kafka.connect.converters.ByteArrayConverter"
DEFINITIONS: Final = {
    "Source": MIRROR_SOURCE_CONFIG,
    "Checkpoint": MIRROR_CHECKPOINT_CONFIG,
    "Heartbeat": MIRROR_HEARTBEAT_CONFIG,
    "worker": DISTRIBUTED_CONFIG,
}
_FILE: Final = {
    "clusters": "A,B",
    "A.bootstrap.servers": "127.0.0.1:1",
    "B.bootstrap.servers": "127.0.0.1:1",
    "A->B.enabled": "true",
    # Java's MirrorMakerConfig otherwise scans the class path for plugins, each time.
    "plugin.discovery": "service_load",
}
_WORKER: Final = {
    **distributed_props("127.0.0.1:1", "g"),
    "key.converter": _CONVERTER,
    "value.converter": _CONVERTER,
    "rest.access.mode": "open",
}
OURS: Final = frozenset([*OWN_CONFIG.names, "plugin.isolation", "tombstone.dead.groups.enabled"])
_NUMBERS: Final = frozenset({Type.INT, Type.SHORT, Type.LONG, Type.DOUBLE})
HUGE: Final = "9" * 20


@dataclass(frozen=True)
class Try:
    """One value of one key, given one way. ``results`` are compared; those of files and starts are followed by the messages."""

    way: str
    definition: str
    key: str
    sort: str
    value: str | None
    results: list[str] = field(default_factory=list, compare=False)

    @property
    def given(self) -> str:
        return "null" if self.value is None else repr(self.value)

    @property
    def verdict(self) -> str:
        java, ours = self.results[:2]
        if java == ours:
            return "same"
        line = f"{self.way}\t{self.definition}\t{self.key}\t{self.sort}"
        found = [reason for pattern, reason in INTENDED if re.fullmatch(pattern, line)]
        return found[0] if found else "DIFFERENT"


_REPORTED: Final = (
    r"sasl\.(login|client|login\.callback|client\.callback)\.(handler\.)?class|sasl\.oauthbearer\.jwt\.\w+\.class"
)
_OF_44: Final = r"bootstrap\.resolve\.timeout\.ms|sasl\.oauthbearer\.allow\.unverified\.\w+|internal\.topics\.automatic\.creation\.enable|metadata\.cluster\.check\.enable"
INTENDED: Final[Sequence[tuple[str, str]]] = (
    (rf"\w+\t\w+\t({_OF_44})\t.*", "a key of Kafka 4.4, which Java's 4.3 does not have"),
    (
        r"(validate|create)\t\w+\tconnector\.plugin\.version\t.*",
        "Java fails with a NullPointerException or reports the error twice; an empty version is any version",
    ),
    (
        r"file\tall\t((\w+\.converter\.plugin\.version|transforms)\t.*|.*\tduplicate)",
        "Java's process starts and the herder rejects the connector; refused at start",
    ),
    (r"file\tall\tenabled\t.*", "a value that is no boolean is refused"),
    (r"file\tall\tconfig\.providers\t.*", "a config provider without a class is refused"),
    (r"\w+\t\w+\tssl\.(protocol|keystore\.type|truststore\.type)\t.*", "what Java could not use either is refused"),
    (rf"worker\tworker\t({_REPORTED})\t.*", "a class of Java has no effect, which is reported at start"),
    (r"worker\tworker\t(key|value|header)\.converter\t.*", "refused when the worker is created"),
    (
        r"worker\tworker\t(listeners|admin\.listeners|rest\.advertised\.listener)\t.*",
        "Java refuses it when the REST server is created",
    ),
)
"""Patterns of `way, definition, key, sort`, with a tab between them, and why the results differ."""


def connector(kind: str) -> dict[str, str | None]:
    """A mirror connector that nothing is wrong with."""
    return {
        "name": "c",
        "connector.class": f"{_MIRROR}.Mirror{kind}Connector",
        "source.cluster.alias": "A",
        "target.cluster.alias": "B",
        "source.cluster.bootstrap.servers": "127.0.0.1:1",
        "target.cluster.bootstrap.servers": "127.0.0.1:1",
    }


def values(definition: ConfigDef, key: str) -> Iterator[tuple[str, str | None]]:
    """Sort and value of each try."""
    row = definition.keys[key]
    default = show(row.default).strip("[]") if row.default not in (None, []) and not row.required else ""
    if default:
        yield "valid", default.replace(", ", ",")
    elif row.type is Type.BOOLEAN or row.type in _NUMBERS:
        yield "valid", "true" if row.type is Type.BOOLEAN else "1"
    elif row.type is Type.STRING:
        yield "valid", "a"
    yield "empty", ""
    yield "blank", "  "
    first = default.split(", ", maxsplit=1)[0] or "a"
    yield "duplicate", f"{first}, {first}"
    yield "negative", "-1"
    yield "huge", HUGE
    yield "wrong type", "*"
    yield "unknown class", "org.acme.Nope"


def tries(every: int = 1) -> list[Try]:
    """All of them, or every n-th."""
    found: dict[Try, None] = {}
    for name, definition in DEFINITIONS.items():
        for key in definition.names:
            if key in OURS or key == "connector.class":
                continue
            ways = ("worker",) if name == "worker" else ("validate", "create", "start", "file")
            for sort, value in values(definition, key):
                for way in ways:
                    found.setdefault(Try(way, "all" if way == "file" else name, key, sort, value))
            if name != "worker":
                found.update({Try(way, name, key, "null", None): None for way in ("validate", "create")})
    return list(found)[::every]


def properties(one: Try) -> dict[str, str | None]:
    base: dict[str, str | None] = (
        dict(_WORKER) if one.way == "worker" else dict(_FILE) if one.way == "file" else connector(one.definition)
    )
    return {**base, one.key: one.value}


# -- requests to workers


def ask(rest: Rest, one: Try) -> str:
    """Status and errors."""
    props = properties(one)
    if one.way == "validate":
        kind = f"Mirror{one.definition}Connector"
        answer = rest.http.put(f"/connector-plugins/{kind}/config/validate", json=props)
        if answer.status_code == 200:
            errors = {
                info["value"]["name"]: sorted(info["value"]["errors"])
                for info in answer.json()["configs"]
                if info["value"]["errors"] and info["value"]["name"] not in OURS
            }
            return _clean(f"200 {json.dumps(errors, sort_keys=True)}")
    else:
        name = f"sweep-{one.definition}".lower()
        if one.key == "name":
            body = {"name": name, "config": props}
            answer = rest.http.post("/connectors", json=body)
        else:
            answer = rest.http.put(f"/connectors/{name}/config", json={**props, "name": name})
        if answer.status_code in (200, 201):
            return "accepted"
    message = answer.json().get("message") or ""
    return _clean(f"{answer.status_code} {' | '.join(sorted(filter(None, message.splitlines())))}")


def over_rest(chosen: Sequence[Try]) -> None:
    """Fill in the results of both workers."""
    with (
        tempfile.TemporaryDirectory() as folder,
        LocalKafka("sweep", Path(folder) / "broker") as broker,
        JavaDistributedWorker(Path(folder) / "java", distributed_props(broker.bootstrap, "java")) as java,
        DistributedWorker(Path(folder) / "ours", distributed_props(broker.bootstrap, "ours")) as ours,
        ThreadPoolExecutor(2) as pool,
    ):
        for rest in (java.rest, ours.rest):
            for kind in ("Source", "Checkpoint", "Heartbeat"):
                name = f"sweep-{kind}".lower()
                rest.create(name, {**connector(kind), "name": name}, state="STOPPED")  # type: ignore[dict-item]
        both = [pool.map(lambda one, rest=rest: ask(rest, one), chosen) for rest in (java.rest, ours.rest)]
        for one, *results in zip(chosen, *both, strict=True):
            one.results[:] = results


# -- in this process


def in_process(chosen: Sequence[Try]) -> None:
    """Fill in the results of the configuration classes of both."""
    lines = [json.dumps([one.definition if one.way == "start" else one.way, properties(one)]) for one in chosen]
    answers = [json.loads(line) for line in run_source(_ORACLE, text="\n".join(lines) + "\n").splitlines()]
    plugins = connect_plugins()
    for one, problem in zip(chosen, answers, strict=True):
        one.results[:] = [_verdict(problem), _verdict(_own_problem(one, plugins))]


def _own_problem(one: Try, plugins: Plugins) -> str:
    props = {key: value or "" for key, value in properties(one).items()}
    try:
        if one.way == "worker":
            raw, _ = without_legacy_keys(props)
            check_effects(worker_uses(raw))
            RestSettings.of(raw)
            WorkerConfig(raw)
        elif one.way == "file":
            plan_flows(MirrorMakerConfig(props), None, plugins)
        else:
            made: Any = plugins.new(props["connector.class"], MirrorConnector, key="connector.class")
            made.dry_run(props)
    except Exception as error:  # noqa: BLE001 - the kind of the exception is part of the result
        return f"{type(error).__name__}: {error}"
    return ""


def _verdict(problem: str) -> str:
    """Messages of a start and of a file are this project's own, with keys as the file writes them."""
    return f"refused: {_clean(problem)}" if problem else "accepted"


def _clean(text: str) -> str:
    return re.sub(r"\s+", " ", text)[:400]


def run(every: int = 1) -> list[Try]:
    """The table."""
    chosen = tries(every)
    rest = [one for one in chosen if one.way in {"validate", "create"}]
    in_process([one for one in chosen if one.way not in {"validate", "create"}])
    for one in chosen:
        if one.results:
            one.results[:] = [result.partition(":")[0] for result in one.results] + one.results
    over_rest(rest)
    return chosen


def write(table: Iterable[Try], out: TextIO) -> None:
    writer = csv.writer(
        out, delimiter="\t", lineterminator="\n", quoting=csv.QUOTE_NONE, quotechar=None, escapechar="\\"
    )
    writer.writerow(["way", "definition", "key", "sort", "given", "java", "ours", "verdict"])
    for one in table:
        java, ours = one.results[-2:]
        writer.writerow([one.way, one.definition, one.key, one.sort, one.given, java, ours, one.verdict])


if __name__ == "__main__":
    with Path(sys.argv[1]).open("w", encoding="utf-8") as out:
        write(run(int(sys.argv[2]) if len(sys.argv) > 2 else 1), out)
