"""connect-mirror-maker as a process: exit codes and output."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from mm2.mirror.common.formats import Heartbeat
from mm2.sandbox.kafka import LocalKafka
from tests.integration.mirror_flow import admin, commit, create, partitions_of, read_all, write
from tests.integration.mirror_process import refused
from tests.support import programs
from tests.support.waiting import PATIENCE, wait_until

ROOT = Path(__file__).parents[3]
COMMAND = (sys.executable, "-P", "-m", "mm2.cli.connect_mirror_maker")
NOBODY = "127.0.0.1:1"


def run(*arguments: str | Path) -> tuple[int, str]:
    """Exit code and all output."""
    done = programs.run("connect_mirror_maker", *map(str, arguments), **_environment())
    return done.returncode, done.stdout + done.stderr


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable}


def config_file(folder: Path, props: Mapping[str, str], *, source: str = NOBODY, target: str = NOBODY) -> Path:
    """A properties file for A->B; the value "" removes a key."""
    base = {
        "clusters": "A, B",
        "A.bootstrap.servers": source,
        "B.bootstrap.servers": target,
        "A->B.enabled": "true",
        "listeners": "http://127.0.0.1:0",
        "replication.factor": "1",
        **{f"{name}.topic.replication.factor": "1" for name in ("offset-syncs", "checkpoints", "heartbeats")},
        **{f"{name}.storage.replication.factor": "1" for name in ("offset", "status", "config")},
    }
    file = folder / "mm2.properties"
    merged = {key: value for key, value in {**base, **props}.items() if value}
    file.write_text("".join(f"{key} = {value}\n" for key, value in merged.items()), encoding="latin-1")
    return file


@pytest.mark.parametrize(("option", "text"), [("--help", "--clusters ALIAS"), ("--version", "connect-mirror-maker ")])
def test_help_and_version_exit_with_0(option: str, text: str) -> None:
    code, output = run(option)
    assert code == 0
    assert text in output


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--nonsense", "x"), "unrecognized arguments: --nonsense"),
        (("no-such-file.properties",), "Cannot read no-such-file.properties: No such file or directory."),
    ],
)
def test_bad_usage_exits_with_255(arguments: tuple[str, ...], sentence: str) -> None:
    code, output = run(*arguments)
    assert code == 255
    assert sentence in output
    assert "Traceback" not in output


JAAS = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="u" password="hush'  # no end

BAD_CONFIGS: list[tuple[dict[str, str], tuple[str, ...], tuple[str, ...]]] = [
    ({"clusters": ""}, (), ('"clusters"',)),
    ({}, ("--clusters", "C"), ("--clusters names C", "A, B")),
    ({}, ("--clusters", "A,B"), ("--clusters names A,B", "Separate aliases with spaces.")),
    (
        {"A->B.enabled": "false", "emit.heartbeats.enabled": "false"},
        (),
        ("No source->target replication flows", "clusters = A, B"),
    ),
    ({"B->A.emit.heartbeats.enabled": "false"}, ("--clusters", "A"), ("No source->target", "--clusters A", "A->B")),
    ({"A->B.tasks.max": "two"}, ("--clusters", "B"), ("A->B.tasks.max", "two")),
    ({"replication.factor": "1.5"}, ("--clusters", "B"), ("replication.factor", "1.5")),
    ({"A->B.enabled": "yes"}, ("--clusters", "B"), ("A->B.enabled", "yes")),
    ({"B.bootstrap.servers": ""}, ("--clusters", "B"), ("bootstrap.servers",)),
    ({"A.bootstrap.servers": "nowhere"}, ("--clusters", "B"), ("bootstrap.servers", "nowhere")),
    (
        {"A->B.replication.policy.class": "com.example.Policy"},
        ("--clusters", "B"),
        ("A->B", "com.example.Policy", "replication.policy.class"),
    ),
    ({"A->B.topic.filter.class": "nope"}, ("--clusters", "B"), ("A->B", "nope", "topic.filter.class")),
    ({"A->B.key.converter": "nope"}, ("--clusters", "B"), ("A->B", "nope", "key.converter")),
    ({"A->B.transforms": "drop"}, ("--clusters", "B"), ("A->B", "transforms.drop.type")),
    (
        {"A->B.transforms": "at", "A->B.transforms.at.type": "TimestampRouter"},
        ("--clusters", "B"),
        ("A->B", "transforms.at.type", "the remote topic would depend on the timestamp"),
    ),
    ({"A->B.topics": "*"}, ("--clusters", "B"), ("A->B", "topics", "dangling meta character", "write .*")),
    ({"A->B.groups": "[a"}, ("--clusters", "B"), ("A->B", "groups", "[a")),
    (
        {"refresh.topics.interval.seconds": "0"},
        ("--clusters", "B"),
        ("A->B", "refresh.topics.interval.seconds", "0", "refresh.topics.enabled=false"),
    ),
    (
        {"B.security.protocol": "SASL_PLAINTEXT", "B.sasl.mechanism": "PLAIN", "B.sasl.jaas.config": JAAS},
        ("--clusters", "B"),
        ("sasl.jaas.config",),
    ),
    (
        {"A->B.topics": "${vault:x:y}", "config.providers": "vault", "config.providers.vault.class": "no.Such"},
        (),
        ("config.providers.vault.class", "no.Such"),
    ),
    ({"A->B.topics": r"\u12"}, (), ("mm2.properties, line",)),
    (
        {"A.consumer.interceptor.classes": "com.example.Mask"},
        ("--clusters", "B"),
        ("A.consumer.interceptor.classes", "com.example.Mask", "Java classes"),
    ),
    (
        {"A.security.protocol": "SSL", "A.ssl.cipher.suites": "TLS_AES_256_GCM_SHA384,TLS_NO_SUCH"},
        (),
        ("A->B", "ssl.cipher.suites", "does not have the cipher suite TLS_NO_SUCH"),
    ),
    (
        {"B.security.protocol": "SSL", "B.ssl.enabled.protocols": "TLSv1.2,TLSv9"},
        (),
        ("A->B", "ssl.enabled.protocols", "TLSv9 is not a version of TLS"),
    ),
    ({"ssl.protocol": "SLSv3"}, (), ("ssl.protocol", "SLSv3", "TLSv1.3")),
    (
        {"listeners": "https://127.0.0.1:0", "ssl.client.auth": "required", "ssl.keystore.location": "/no/own.pem"},
        (),
        ("listeners.https.ssl.truststore.location", "ssl.client.auth needs a trust store"),
    ),
    ({"A->B.offsets.storage.topic": "own"}, ("--clusters", "B"), ("A->B.offsets.storage.topic", "own")),
]


@pytest.fixture(scope="module")
def refusals(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[int, str]]:
    """Exit code and output for each of BAD_CONFIGS."""
    return refused([[str(config_file(tmp_path_factory.mktemp("bad"), bad[0])), *bad[1]] for bad in BAD_CONFIGS])


@pytest.mark.parametrize(
    "case", range(len(BAD_CONFIGS)), ids=[" ".join((*bad[0], *bad[1])) or "-" for bad in BAD_CONFIGS]
)
def test_a_bad_configuration_exits_with_2_and_one_sentence(refusals: list[tuple[int, str]], case: int) -> None:
    code, output = refusals[case]
    assert code == 2, output
    errors = [json.loads(line) for line in output.splitlines() if '"level": "error"' in line]
    assert len(errors) == 1, output
    for word in BAD_CONFIGS[case][2]:
        assert word in errors[0]["event"]
    assert "Traceback" not in output
    assert "hush" not in output


def test_a_port_in_use_exits_with_2_and_names_the_key_to_change(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ((code, output),) = refused([[str(config_file(tmp_path, {"listeners": f"http://127.0.0.1:{port}"}))]])
    (error,) = [json.loads(line)["event"] for line in output.splitlines() if '"level": "error"' in line]
    assert (code, error.removeprefix("Unable to initialize REST server: ")) == (
        2,
        f"Cannot listen on http://127.0.0.1:{port}/: Address already in use; set another port in listeners, or 0 for any free port",
    )


def test_the_default_port_in_use_is_an_error_too(tmp_path: Path) -> None:
    """A client that knows the port, such as one of the README, would reach the process that uses it."""
    with ExitStack() as stack:
        with suppress(OSError):  # in use already
            stack.enter_context(socket.create_server(("127.0.0.1", 8083)))
        ((code, output),) = refused([[str(config_file(tmp_path, {"listeners": ""}))]])
    (error,) = [json.loads(line)["event"] for line in output.splitlines() if '"level": "error"' in line]
    assert code == 2
    assert "Cannot listen on http://127.0.0.1:8083/: Address already in use; set another port in listeners" in error


def test_nothing_is_created_for_a_bad_configuration(tmp_path: Path, kafka_a: LocalKafka, kafka_b: LocalKafka) -> None:
    before = set(admin(kafka_b).list_topics(timeout=10).topics), set(admin(kafka_a).list_topics(timeout=60).topics)
    file = config_file(tmp_path, {"A->B.groups": "[a"}, source=kafka_a.bootstrap, target=kafka_b.bootstrap)
    assert run(file)[0] == 2
    after = set(admin(kafka_b).list_topics(timeout=10).topics), set(admin(kafka_a).list_topics(timeout=60).topics)
    assert before == after


def test_an_unreachable_target_exits_with_2(tmp_path: Path) -> None:
    started = time.monotonic()
    code, output = run(config_file(tmp_path, {}), "--clusters", "B")
    assert code == 2
    assert f"The target cluster B (B.bootstrap.servers = {NOBODY}) cannot be used: " in output
    assert "connection refused" in output
    assert time.monotonic() - started < 15 * PATIENCE


def test_a_wrong_password_is_reported_immediately(tmp_path: Path) -> None:
    login = "org.apache.kafka.common.security.plain.PlainLoginModule required"
    listener = "listener.name.login.plain.sasl.jaas.config"
    overrides = {
        "sasl.enabled.mechanisms": "PLAIN",
        listener: f'{login} username="mm2" password="right" user_mm2="right";',
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
    }
    listeners = {"PLAIN": "PLAINTEXT", "LOGIN": "SASL_PLAINTEXT"}
    with LocalKafka("S", tmp_path / "broker", listeners=listeners, overrides=overrides) as broker:
        props = {
            "B.security.protocol": "SASL_PLAINTEXT",
            "B.sasl.mechanism": "PLAIN",
            "B.sasl.jaas.config": f'{login} username="mm2" password="wrong";',
        }
        file = config_file(tmp_path, props, target=broker.address("LOGIN"))
        started = time.monotonic()
        code, output = run(file, "--clusters", "B", "--log-level", "debug")
        took_s = time.monotonic() - started
        assert code == 2
        assert "The target cluster B" in output
        assert "password" in output.lower()
        assert '"wrong"' not in output
        assert "wrong;" not in output
        assert took_s < 30 * PATIENCE, "it is not repeated for a minute, as an unreachable cluster is"
        assert not [topic for topic in admin(broker).list_topics(timeout=60).topics if topic.startswith("mm2")]


def test_keys_without_effect_are_reported_once(tmp_path: Path) -> None:
    file = config_file(tmp_path, {"A.consumer.max.poll.records": "5", "B.producer.acks": "1"})
    _, output = run(file, "--clusters", "B")
    (none,) = [line for line in output.splitlines() if "A.consumer.max.poll.records" in line]
    assert "has no effect: records are copied in batches" in none
    (limited,) = [line for line in output.splitlines() if "B.producer.acks" in line]
    assert "has a limited effect: copying always uses acks=all" in limited


def test_an_unknown_key_is_reported_with_the_closest_known_key(tmp_path: Path) -> None:
    file = config_file(tmp_path, {"refresh.topic.interval.seconds": "5"})
    _, output = run(file, "--clusters", "B")
    (warning,) = [line for line in output.splitlines() if "Unknown key" in line]
    assert "refresh.topic.interval.seconds" in warning
    assert "Did you mean refresh.topics.interval.seconds?" in warning


@contextmanager
def process(file: Path, log: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """A running connect-mirror-maker; remaining processes are killed at the end."""
    command = [*COMMAND, str(file), *arguments]
    started = programs.start(command, output=log, folder=ROOT, environment=_environment())
    try:
        yield started
    finally:
        if started.poll() is None:
            started.kill()
        started.wait()


def stop(running: subprocess.Popen[bytes], how: int = signal.SIGTERM) -> int:
    started = time.monotonic()
    running.send_signal(how)
    code = running.wait(20 * PATIENCE)
    assert time.monotonic() - started < 15 * PATIENCE
    return code


@pytest.mark.slow
def test_a_flow_runs_all_three_connectors_and_stops_cleanly(
    tmp_path: Path, kafka_a: LocalKafka, kafka_b: LocalKafka
) -> None:
    s, t = "one", "two"  # unique aliases, so unique internal topics
    create(kafka_a, "cli-orders", 2)
    write(kafka_a, "cli-orders", [(b"k%d" % i, b"v%d" % i) for i in range(100)], 0)
    commit(kafka_a, "cli-billing", {("cli-orders", 0): 40})
    props = {
        "clusters": f"{s}, {t}",
        f"{s}.bootstrap.servers": kafka_a.bootstrap,
        f"{t}.bootstrap.servers": kafka_b.bootstrap,
        "A->B.enabled": "",
        f"{s}->{t}.enabled": "true",
        f"{s}->{t}.topics": "cli-.*",
        f"{s}->{t}.groups": "cli-.*",
        "refresh.topics.interval.seconds": "1",
        "refresh.groups.interval.seconds": "1",
        "emit.checkpoints.interval.seconds": "1",
        "sync.topic.acls.enabled": "false",
    }
    log = tmp_path / "log"
    with process(config_file(tmp_path, props), log, "--clusters", t) as running:

        def there(topic: str, count: int, partition: int = 0) -> bool:
            assert running.poll() is None, log.read_text()
            return partitions_of(kafka_b, topic) > 0 and len(read_all(kafka_b, topic, partition)) >= count

        wait_until(lambda: there(f"{s}.cli-orders", 100), 60, what="copying")
        assert read_all(kafka_b, f"{s}.cli-orders") == [(b"k%d" % i, b"v%d" % i) for i in range(100)]
        wait_until(lambda: there(f"{s}.checkpoints.internal", 1), 60, what="a checkpoint")
        wait_until(lambda: there("heartbeats", 1), 30, what="a heartbeat")
        beats = [Heartbeat.decode(*beat) for beat in read_all(kafka_b, "heartbeats")]
        assert (s, t) in {(beat.source, beat.target) for beat in beats}
        # added while it runs
        create(kafka_a, "cli-later")
        write(kafka_a, "cli-later", [(None, b"first")], 0)
        wait_until(lambda: there(f"{s}.cli-later", 1), 30, what="copying of a new topic")
        assert read_all(kafka_b, f"{s}.cli-later") == [(None, b"first")]
        assert stop(running) == 0
    lines = [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]
    assert all("flow" in line for line in lines if line.get("connector")), "every line of a connector names its flow"
    assert any("task" in line for line in lines)
    assert not [line for line in lines if line["level"] == "error"]


def test_an_unreachable_source_keeps_the_process_running_and_ctrl_c_ends_it(
    tmp_path: Path, kafka_b: LocalKafka
) -> None:
    props = {
        "clusters": "absent, present",
        "absent.bootstrap.servers": NOBODY,
        "present.bootstrap.servers": kafka_b.bootstrap,
        "A->B.enabled": "",
        "absent->present.enabled": "true",
    }
    log = tmp_path / "log"
    with process(config_file(tmp_path, props), log, "--clusters", "present") as running:
        wait_until(lambda: "cluster absent cannot be reached" in log.read_text(), 40, what="a word about the source")
        assert running.poll() is None
        assert stop(running, signal.SIGINT) == 0
