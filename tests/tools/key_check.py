"""Starts the programs with every key of Kafka set to an unusual value: `python -m tests.tools.key_check`, some minutes.

Lists the keys for which neither an effect, a report nor a refusal was observed, and exits with 1 if there are any. A
refused key is set alone, all others together. The effect of each honoured key is observed by the test that
tests/unit/config/key_tests.tsv names, which is not run here. Large numbers are also looked for in the objects of a running
process that are not part of mm2.config.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from confluent_kafka import KafkaException, Producer

from mm2.cli import connect_mirror_maker
from mm2.config.configdef import ConfigDef, ConfigException, ConfigKey, Type
from mm2.config.keys.client_keys import ADMIN_CONFIG, CONSUMER_CONFIG, PRODUCER_CONFIG
from mm2.config.keys.connector_keys import SINK_CONNECTOR_CONFIG, SOURCE_CONNECTOR_CONFIG
from mm2.config.keys.key_effects import Effect, KeyEffect, key_effects
from mm2.config.keys.mirror_keys import MIRROR_CHECKPOINT_CONFIG, MIRROR_HEARTBEAT_CONFIG, MIRROR_SOURCE_CONFIG
from mm2.config.keys.worker_keys import DISTRIBUTED_CONFIG, STANDALONE_CONFIG
from mm2.config.mirrormaker import TOP_CONFIG
from mm2.sandbox.kafka import LocalKafka
from tests.integration.connect_reading import create_topic, read_all
from tests.support.waiting import wait_until
from tests.unit.config.key_tests import exists, key_tests

ROOT: Final = Path(__file__).parents[2]
TOPIC: Final = "unusual"
DEFINITIONS: Final[Mapping[str, tuple[ConfigDef, ...]]] = {
    "client": (CONSUMER_CONFIG,),
    "security": (CONSUMER_CONFIG,),
    "consumer": (CONSUMER_CONFIG,),
    "mirror consumer": (CONSUMER_CONFIG,),
    "producer": (PRODUCER_CONFIG,),
    "mirror producer": (PRODUCER_CONFIG,),
    "mirror syncs": (PRODUCER_CONFIG,),
    "admin": (ADMIN_CONFIG,),
    "worker": (DISTRIBUTED_CONFIG, STANDALONE_CONFIG),
    "connector": (SOURCE_CONNECTOR_CONFIG, SINK_CONNECTOR_CONFIG),
    "mirror": (MIRROR_SOURCE_CONFIG, MIRROR_CHECKPOINT_CONFIG, MIRROR_HEARTBEAT_CONFIG, SOURCE_CONNECTOR_CONFIG),
    "mirror records": (MIRROR_SOURCE_CONFIG,),
    "process": (TOP_CONFIG,),
}
IN_MIRROR_MAKER: Final = {
    "client": ("A.consumer.",),
    "security": ("A.",),
    "mirror consumer": ("A.consumer.",),
    "producer": ("B.producer.",),
    "mirror producer": ("B.producer.",),
    "mirror syncs": ("A->B.producer.",),
    "admin": ("A.admin.",),
    "worker": ("B.",),
    "mirror": ("A->B.",),
    "process": ("",),
}
"""Prefixes of the keys of a table in a file of MirrorMaker; a table that is not here only concerns Connect's workers."""
IN_WORKER: Final = {"consumer": ("consumer.",), "producer": ("producer.",)}


class Unusual:
    """Unusual values: each number is used once, so that it can be recognized."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)

    def of(self, row: KeyEffect) -> str:
        """A valid value other than the default, or for a key without effect one that is not accepted; "" if there is none."""
        found = [one.keys[row.key] for one in DEFINITIONS.get(row.place, ()) if row.key in one.keys]
        if not found:
            return "unusual"
        return next((text for text in self._candidates(found[0]) if self._fits(found[0], row, text)), "")

    def _candidates(self, key: ConfigKey) -> Iterator[str]:
        number = next(self._numbers)
        if key.type is Type.BOOLEAN:
            yield from ("false" if key.default else "true", "true", "false")
        elif key.type in (Type.INT, Type.LONG, Type.SHORT):
            base = key.default if isinstance(key.default, int) and 100 <= key.default < 2**30 else 70_000
            yield from (str(base + number), str(base - number), "7", "1", "2", "0", "-1")
        elif key.type is Type.DOUBLE:
            yield from ("0.77", "0.17")
        else:
            listed = re.search(r"\[(\w[^\]]*)\]", str(key.validator or ""))
            yield from (one.strip() for one in listed[1].split(",")) if listed else ()
            yield "com.example.Unusual"

    @staticmethod
    def _fits(key: ConfigKey, row: KeyEffect, text: str) -> bool:
        try:
            parsed = key.parse(text)
        except ConfigException:
            return False
        return parsed != key.default if row.effect is Effect.HONOURED else row.concerns(text)


# -- reports and refusals


def without_effect(folder: Path, unusual: Unusual) -> set[str]:
    """Start each program once with all keys that have no effect; the keys that no report names, as in the file."""
    silent: set[str] = set()
    for program, prefixes, base in PROGRAMS:
        given = {
            prefix + row.key: unusual.of(row)
            for row in key_effects()
            if row.effect in (Effect.NONE, Effect.PARTLY) and "*" not in row.key
            for prefix in prefixes.get(row.place, ())
        }
        _, output = run(program, folder, {**base, **given})
        reported = set(re.findall(r"Configuration (\S+) has (?:no|a limited) effect", output))
        silent |= {f"{program}: {key}" for key in given.keys() - reported}
    return silent


def refused(folder: Path, unusual: Unusual) -> set[str]:
    """Start a program with each refused key; those that do not end it with exit code 2 and a sentence with the key."""
    accepted: set[str] = set()
    for program, prefixes, base in PROGRAMS:
        for row in key_effects():
            if row.effect is not Effect.REFUSED or (program == "connect_mirror_maker" and shadowed(row.place, row.key)):
                continue
            for prefix in prefixes.get(row.place, ()):
                code, output = run(program, folder, {**base, (key := prefix + row.key): unusual.of(row)})
                if code != 2 or f"for configuration {key}: {row.reason}" not in output:
                    accepted.add(f"{program}: {key}")
    return accepted


NOBODY: Final = "127.0.0.1:1"
FLOW: Final = {"clusters": "A,B", "A.bootstrap.servers": NOBODY, "B.bootstrap.servers": NOBODY, "A->B.enabled": "true"}
_BYTES: Final = "org.apache.kafka.connect.converters.ByteArrayConverter"
WORKER: Final = {
    "bootstrap.servers": NOBODY,
    "default.api.timeout.ms": "1000",
    "group.id": "unusual",
    "listeners": "http://127.0.0.1:0",
    "key.converter": _BYTES,
    "value.converter": _BYTES,
    **{f"{store}.storage.topic": store for store in ("config", "offset", "status")},
}
PROGRAMS: Final = (
    ("connect_mirror_maker", IN_MIRROR_MAKER, FLOW),
    ("connect_distributed", IN_WORKER, WORKER),
)


def run(program: str, folder: Path, props: Mapping[str, str]) -> tuple[int, str]:
    """Exit code and output of a program that no cluster answers."""
    command = [sys.executable, "-P", "-m", f"mm2.cli.{program}", str(written(folder, props))]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, env=environment(), timeout=300)
    return ended.returncode, ended.stdout + ended.stderr


def written(folder: Path, props: Mapping[str, str]) -> Path:
    file = folder / "unusual.properties"
    file.write_text("".join(f"{key.replace(':', chr(92) + ':')} = {value}\n" for key, value in props.items()))
    return file


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}


# -- effects


def numbers(unusual: Unusual) -> dict[tuple[str, str], tuple[str, str]]:
    """(key of the file, value) by row, for honoured keys with a number as value that does not stop the flow."""
    found: dict[tuple[str, str], tuple[str, str]] = {}
    for row in key_effects():
        prefixes = IN_MIRROR_MAKER.get(row.place, ())
        default = next(
            (one.keys[row.key].default for one in DEFINITIONS.get(row.place, ()) if row.key in one.keys), None
        )
        large = isinstance(default, int) and 100 <= default < 2**30
        shown = row.effect in (Effect.HONOURED, Effect.PARTLY) and not shadowed(row.place, row.key)
        if shown and large and prefixes:
            found[row.place, row.key] = (prefixes[0] + row.key, unusual.of(row))
    return found


def in_the_running_process(folder: Path, wanted: Mapping[tuple[str, str], tuple[str, str]]) -> set[tuple[str, str]]:
    """Copy records with all these settings at once; the rows whose value is in an object of the process."""
    with LocalKafka("A", folder / "A") as source, LocalKafka("B", folder / "B") as target:
        create_topic(source.bootstrap, TOPIC, 1)
        producer = Producer({"bootstrap.servers": source.bootstrap, "log_level": 0})
        producer.produce(TOPIC, b"value")
        producer.flush(30)
        factors = {
            key: "1"
            for row in key_effects()
            if row.place in ("mirror", "worker") and row.key.endswith("replication.factor")
            for key in [f"{'A->B' if row.place == 'mirror' else 'B'}.{row.key}"]
        }
        props = {
            **FLOW,
            **factors,
            "A.bootstrap.servers": source.bootstrap,
            "B.bootstrap.servers": target.bootstrap,
            **dict(wanted.values()),
        }
        found_file = folder / "found.json"
        code = f"from tests.tools.key_check import inspected; inspected({str(found_file)!r})"
        command = [sys.executable, "-c", code, str(written(folder, props))]
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, env=environment(), cwd=ROOT)
        try:
            wait_until(
                lambda: process.poll() is not None or f"A.{TOPIC}" in topics(target.bootstrap),
                120,
                detail=lambda: (folder / "log").read_text()[-3000:],
            )
            wait_until(lambda: has_records(target.bootstrap, f"A.{TOPIC}"), 120)
            process.send_signal(signal.SIGUSR1)
            wait_until(found_file.exists, 60)
        finally:
            process.terminate()
            process.wait(60)
        seen = set(json.loads(found_file.read_text()))
    return {row for row, (_, value) in wanted.items() if {float(value), int(value) / 1000} & seen}


def topics(bootstrap: str) -> set[str]:
    return set(Producer({"bootstrap.servers": bootstrap, "log_level": 0}).list_topics(timeout=10).topics)


def has_records(bootstrap: str, topic: str) -> bool:
    """False also while the new topic has no leader."""
    with contextlib.suppress(KafkaException):
        return bool(read_all(bootstrap, topic))
    return False


def inspected(found: str) -> None:
    """Run MirrorMaker; at SIGUSR1 write the numbers in its objects, except those of mm2.config, to the file ``found``."""

    def look(*_: object) -> None:
        values = {float(value) for one in gc.get_objects() if is_ours(type(one)) for value in attributes(one)}
        partial = Path(f"{found}.part")
        partial.write_text(json.dumps(sorted(values)))
        partial.rename(found)

    signal.signal(signal.SIGUSR1, lambda *_: threading.Thread(target=look).start())
    sys.exit(connect_mirror_maker.main(sys.argv[1:]))


def is_ours(kind: type) -> bool:
    return kind.__module__.startswith("mm2.") and not kind.__module__.startswith("mm2.config.")


def attributes(one: object) -> Iterator[float]:
    names = itertools.chain(
        getattr(one, "__dict__", {}), *(getattr(kind, "__slots__", ()) for kind in type(one).__mro__)
    )
    for name in names:
        value = getattr(one, name, None)
        if isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 2**53:
            yield value


def shadowed(table: str, key: str) -> bool:
    """Whether another row applies to producers of mirror connectors."""
    return table == "producer" and any((row.place, row.key) == ("mirror producer", key) for row in key_effects())


def main() -> int:
    """Print what was observed; returns the exit code."""
    unusual = Unusual()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        silent, accepted = without_effect(folder, unusual), refused(folder, unusual)
        wanted = numbers(unusual)
        live = in_the_running_process(folder, wanted)
    tested = {key for key, test in key_tests() if exists(test)}
    honoured = {(row.place, row.key) for row in key_effects() if row.effect in (Effect.HONOURED, Effect.PARTLY)}
    print(
        f"{len(key_effects())} keys; {len(honoured)} honoured, {len(honoured & tested)} of them with a test of the effect"
    )
    print(f"{len(live)} of {len(wanted)} numbers in an object of the running process; not:")
    for place, key in sorted(wanted.keys() - live):
        print(f"  {place}: {key}")
    unread = {f"{place}: {key}" for place, key in honoured - tested}
    for what, keys in (("no report", silent), ("no refusal", accepted), ("no effect", unread)):
        print(f"{what}: {len(keys)}")
        for key in sorted(keys):
            print(f"  {key}")
    return 1 if silent or accepted or unread else 0


if __name__ == "__main__":
    sys.exit(main())
