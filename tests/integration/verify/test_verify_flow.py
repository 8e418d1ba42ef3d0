"""`mm2 verify` of running flows: all kinds of records are equal, records of other producers on the target are detected, and
continuous verification continues through faults and resets of the flow."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from confluent_kafka.admin import ResourceType
from prometheus_client.parser import text_string_to_metric_families as parse

from mm2.codec import encode
from mm2.copy.progress.ledger import Verified
from mm2.kafka.records.record import Record
from mm2.kafka.structs import TopicPartition
from mm2.sandbox.kafka import LocalKafka
from mm2.sandbox.ports import free_ports
from mm2.sandbox.process import end, spawn
from mm2.verify.comparing.findings import DifferenceKind
from mm2.verify.driver import Verifier
from mm2.verify.planning import Certainty, VerifyRequest
from mm2.verify.report import Verdict, VerifyReport
from mm2.verify.verification import Verification
from tests.integration.asking import asked
from tests.integration.copy_flow import Traffic, admin_of, alter, batches, create, end_offset, producer_of
from tests.integration.java_mirror import JavaMirrorProcess
from tests.integration.mirror_process import ROOT, MirrorProcess, partitions_of
from tests.integration.verified_flow import (
    CODECS,
    COUNT,
    check_named,
    command,
    file_of,
    flow_of,
    is_copied,
    ledger_of,
    numbered,
    one_of,
    seed,
    write,
)
from tests.support.waiting import PATIENCE, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(int(600 * PATIENCE))]


@pytest.fixture(scope="module")
def frail(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalKafka]:
    """A target that tests freeze."""
    with LocalKafka("B", tmp_path_factory.mktemp("frail"), heap="384m") as broker:
        yield broker


# -- running flows -----------------------------------------------------------------------------------------------------


def fill(broker: LocalKafka, unique: str) -> None:
    """Every codec; headers, nulls and tombstones; committed and aborted transactions; gaps of the log cleaner."""
    codecs, transactions, cleaned = (f"{unique}.{name}" for name in ("codecs", "transactions", "cleaned"))
    create(broker, codecs, len(CODECS), retention__ms="-1")
    create(broker, transactions, retention__ms="-1")
    alter(broker, ResourceType.BROKER, "1", "log.cleaner.backoff.ms", "100")
    compact: dict[str, Any] = {
        "cleanup__policy": "compact",
        "segment__ms": "200",
        "min__cleanable__dirty__ratio": "0.001",
        "delete__retention__ms": "0",
    }
    create(broker, cleaned, **compact)
    again = [record for record in numbered(40) if int(record.headers[0][1] or b"0") % 2]
    write(broker, cleaned, [*numbered(40), *again], codec="zstd")
    for partition, codec in enumerate(CODECS):
        producer = producer_of(broker, compression__type=codec)
        for i in range(300):
            producer.produce(
                codecs, b"value %d " % i * 5, b"k%d" % i, partition, headers=[("n", b"%d" % i), ("null", None)]
            )
        for key, value in (
            (b"tombstone", None),
            (b"", b""),
            (None, None),
            (None, b"value only"),
            (b"large", os.urandom(300_000)),
        ):
            producer.produce(codecs, value, key, partition)
        assert producer.flush(60) == 0
    sender = producer_of(broker, transactional__id=unique)
    sender.init_transactions(30)
    for turn in range(6):
        sender.begin_transaction()
        for i in range(20):
            sender.produce(transactions, b"%d-%d" % (turn, i), b"k")
        if turn % 3 == 1:
            assert sender.flush(30) == 0  # otherwise the client drops unsent records
            sender.abort_transaction(30)
        else:
            sender.commit_transaction(30)

    def has_holes() -> bool:
        if all(header.is_dense for header, _ in batches(broker, cleaned)):
            time.sleep(0.2)
            write(broker, cleaned, [Record(b"last", b"1")])  # rolls the segment: the active one is never cleaned
        return any(not header.is_dense for header, _ in batches(broker, cleaned))

    wait_until(has_holes, 60)


@pytest.mark.parametrize("exactly_once", ["disabled", "enabled"])
def test_a_running_flow_is_equal_and_foreign_records_on_its_target_are_found(
    verifier: Verifier,
    kafka_a: LocalKafka,
    kafka_b: LocalKafka,
    unique: str,
    tmp_path: Path,
    exactly_once: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    fill(kafka_a, unique)
    codecs = f"{unique}.codecs"
    ends = {TopicPartition(codecs, index): end_offset(kafka_a, codecs, index) for index in range(len(CODECS))}
    ends |= {
        TopicPartition(topic, 0): end_offset(kafka_a, topic)
        for topic in (f"{unique}.transactions", f"{unique}.cleaned")
    }
    (port,) = free_ports(1)
    more = {
        f"{unique}-b.exactly__once__source__support": exactly_once,
        "dedicated__mode__enable__internal__rest": "true",  # zombies are fenced through it
        "listeners": f"http://127.0.0.1:{port}",
    }
    file = file_of(kafka_a, kafka_b, unique, tmp_path, **more)
    flow = flow_of(file, unique)
    process = MirrorProcess(file, tmp_path / "log")
    verification = Verification(flow.props, verifier, patience_s=120)
    try:
        process.eventually(lambda: is_copied(flow, kafka_b, ends), 240)
        with Traffic(kafka_a, codecs, len(CODECS), per_second=200) as traffic:
            report = verification.run(VerifyRequest())
            verification.store_verified(report)
            assert traffic.sent
        assert report.verdict is Verdict.EQUAL, encode(report)
        assert {row.certainty for row in report.partitions} == {Certainty.LEDGER}
        assert {row.source for row in report.partitions} == set(ends)
        committed = one_of(report, f"{unique}.transactions")
        assert (committed.records, committed.explained) == (80, {"control": 6, "aborted": 40})
        cleaned = one_of(report, f"{unique}.cleaned")
        assert cleaned.explained["compacted"] >= 10
        assert all(one_of(report, codecs, index).records >= 305 for index in range(len(CODECS)))

        place = TopicPartition(codecs, 0)
        noted = flow.ledger().verified(place)
        assert noted is not None
        assert (noted.first, noted.offset, noted.records) == (0, noted.checked, one_of(report, codecs).records)
        remote = f"{unique}-a.{codecs}"
        write(kafka_b, remote, [Record(b"who", b"knows", (), 5)])
        write(kafka_a, codecs, numbered(3))
        last = end_offset(kafka_a, codecs)
        process.eventually(lambda: is_copied(flow, kafka_b, {place: last}), 120)
        later = verification.run(VerifyRequest(), incremental=True)
        verification.store_verified(later)
        found = one_of(later, codecs)
        assert found.counts == {DifferenceKind.EXTRA: 1}, encode(later)
        assert found.first == noted.checked, "it must continue at its last offset"
        assert found.records == last - noted.checked
        again = flow.ledger().verified(place)
        assert again is not None
        assert (again.first, again.checked, again.records) == (0, last, noted.records + found.records)
        assert again.differences == {"extra": 1}
        assert noted.checked <= again.offset < last, "nothing behind the first difference counts as verified"
        code, out, err = asked(capsys, "status", file, f"{unique}-a->{unique}-b", "--json")
        (document,) = json.loads(out)["flows"]
        assert (code, document["state"]) == (1, "DEGRADED"), err
        assert f"{unique}-b differs from {unique}-a: 1 extra, found by mm2 verify." in document["sentence"]
    finally:
        process.clean_up()


def test_copies_by_java_are_compared_by_offset_syncs_and_content(
    verifier: Verifier, kafka_a: LocalKafka, kafka_b: LocalKafka, unique: str, tmp_path: Path
) -> None:
    fill(kafka_a, unique)
    topics = {name: f"{unique}.{name}" for name in ("codecs", "transactions", "cleaned")}
    file = file_of(kafka_a, kafka_b, unique, tmp_path)
    process = JavaMirrorProcess(file, tmp_path / "java.log", f"{unique}-b")
    verification = Verification(flow_of(file, unique).props, verifier, patience_s=120)
    wanted = {"codecs": len(CODECS) * 305, "transactions": 80}

    def copied() -> bool:
        got = {
            name: sum(end_offset(kafka_b, f"{unique}-a.{topics[name]}", index) for index in range(partitions))
            for name, partitions in (("codecs", len(CODECS)), ("transactions", 1))
            if partitions_of(kafka_b, f"{unique}-a.{topics[name]}") == partitions
        }
        return got == wanted

    try:
        process.eventually(copied, 240)
        report = verification.run(VerifyRequest())
        assert report.verdict is Verdict.EQUAL, encode(report)
        rows = [one_of(report, topics["codecs"], index) for index in range(len(CODECS))]
        committed = one_of(report, topics["transactions"])
        assert {row.certainty for row in (*rows, committed)} == {Certainty.SYNCS}
        assert [(row.records, row.explained) for row in rows] == [(305, {})] * len(CODECS)
        assert committed.records == 80
        verification.store_verified(report)
        assert ledger_of(flow_of(file, unique)) is None, "there is no ledger, and none is made"

        remote = f"{unique}-a.{topics['codecs']}"
        write(kafka_b, remote, [Record(b"who", b"knows", (), 5)])
        write(kafka_a, topics["codecs"], numbered(3))
        process.eventually(lambda: end_offset(kafka_b, remote) == 305 + 1 + 3, 120)
        found = one_of(verification.run(VerifyRequest(topics=frozenset({topics["codecs"]}))), topics["codecs"])
        assert (found.records, found.counts) == (308, {DifferenceKind.EXTRA: 1})
        assert [one.target for one in found.differences] == [305]
    finally:
        process.clean_up()


# -- continuous verification -------------------------------------------------------------------------------------------


class Continuous:
    """`mm2 verify --continuous` as a separate process."""

    def __init__(self, file: Path, unique: str, log: Path) -> None:
        options = ("--continuous", "--every", "1", "--json", "--patience", str(int(20 * PATIENCE)))
        self.log = log
        self._process = spawn(
            command(file, unique, *options), output=log, environment={**os.environ, "PYTHONPATH": str(ROOT)}
        )

    @property
    def reports(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.lines("{")]

    def lines(self, beginning: str) -> list[str]:
        return [line for line in self.log.read_text().splitlines() if line.startswith(beginning)]

    def stop(self) -> int:
        assert self._process.poll() is None, self.log.read_text()[-2000:]
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(60 * PATIENCE)

    def clean_up(self) -> None:
        end(self._process, patience_s=20)


class Watched:
    """A flow with two partitions from A to a B that fails, its process, and its verified offsets."""

    def __init__(self, a: LocalKafka, b: LocalKafka, unique: str, folder: Path) -> None:
        (port,) = free_ports(1)
        self.a, self.b = a, b
        self.topic, self.remote = f"{unique}.t", f"{unique}-a.{unique}.t"
        self.file = file_of(a, b, unique, folder, listeners=f"http://127.0.0.1:{port}")
        self.flow = flow_of(self.file, unique)
        self.url = f"http://127.0.0.1:{port}"
        self.connector = f"{self.url}/{unique}-a/{unique}-b/connectors/MirrorSourceConnector"
        self.overview = f"{self.url}/overview/{unique}-a/{unique}-b/partitions"
        self._folder = folder
        self._starts = 0
        self.process = self.start()

    def start(self) -> MirrorProcess:
        self._starts += 1
        self.process = MirrorProcess(self.file, self._folder / f"mirror-{self._starts}.log")
        return self.process

    def write(self, count: int) -> None:
        """Write that many more records to each partition."""
        for partition in (0, 1):
            write(self.a, self.topic, numbered(count), partition)

    def verified(self) -> list[Verified | None]:
        ledger = ledger_of(self.flow)
        return [None if ledger is None else ledger.verified(TopicPartition(self.topic, index)) for index in (0, 1)]

    def until(self, condition: Callable[[list[Verified | None]], object]) -> list[Verified]:
        """Wait for the verified offsets in the ledger."""
        wait_until(
            lambda: condition(self.verified()),
            120,
            detail=lambda: f"{self.verified()} {self.entries()} {self.process.tail()}",
        )
        return [one for one in self.verified() if one is not None]

    def entries(self) -> list[str]:
        ledger = ledger_of(self.flow)
        found = [] if ledger is None else [ledger.entry(TopicPartition(self.topic, index)) for index in (0, 1)]
        return [f"{entry.mark} {entry.condition}" for entry in found if entry is not None]

    def until_at(self, offset: int) -> list[Verified]:
        return self.until(lambda found: [None if one is None else one.offset for one in found] == [offset] * 2)

    def reset(self, offsets: list[dict[str, Any]] | None) -> None:
        """Set positions (last copied offsets) while the connector is stopped; None removes all of them."""

        def done(method: str, path: str, **more: Any) -> Callable[[], bool]:
            def asked_for() -> bool:
                with suppress(httpx.HTTPError):
                    return httpx.request(method, f"{self.connector}{path}", timeout=30, **more).status_code < 300
                return False

            return asked_for

        wait_until(done("PUT", "/stop"), 60, detail=self.process.tail)
        how = done("DELETE", "/offsets") if offsets is None else done("PATCH", "/offsets", json={"offsets": offsets})
        wait_until(how, 60, detail=self.process.tail)
        wait_until(done("PUT", "/resume"), 60, detail=self.process.tail)

    def samples(self, name: str) -> dict[str, float]:
        """The values by partition."""
        text = httpx.get(f"{self.url}/metrics", timeout=30).text
        return {
            one.labels["partition"]: one.value
            for family in parse(text)
            for one in family.samples
            if one.name == name and one.labels["topic"] == self.topic
        }


def test_continuous_verification_survives_faults_and_follows_a_rewound_flow(
    kafka_a: LocalKafka, frail: LocalKafka, unique: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    create(kafka_a, f"{unique}.t", 2, retention__ms="-1")
    watched = Watched(kafka_a, frail, unique, tmp_path)
    watched.write(100)
    continuous = Continuous(watched.file, unique, tmp_path / "verify.log")
    try:
        first = watched.until_at(100)
        assert [(one.first, one.checked, one.records, one.target) for one in first] == [(0, 100, 100, 100)] * 2

        # Shown by metrics, dashboard and status.
        wait_until(
            lambda: watched.samples("mm2_partition_verified_offset") == {"0": 100.0, "1": 100.0},
            60,
            detail=lambda: watched.samples("mm2_partition_verified_offset"),
        )
        rows = httpx.get(watched.overview, timeout=30).json()["rows"]
        assert [row["verified_offset"] for row in rows if row["topic"] == watched.topic] == [100, 100]
        code, out, err = asked(capsys, "status", watched.file, f"{unique}-a->{unique}-b", "--json")
        (document,) = json.loads(out)["flows"]
        assert [row["verified_offset"] for row in document["partitions"]] == [100, 100], (code, err)

        # Without a process no record is verified, which is no error. Then a process copies and is killed.
        watched.process.stop()
        watched.write(50)
        time.sleep(3)
        assert [one and one.offset for one in watched.verified()] == [100, 100]
        watched.start()
        watched.until_at(150)
        watched.process.kill9(whole_family=True)
        watched.write(50)
        watched.start()
        watched.until_at(200)

        # The target hangs and recovers.
        frail.pause()
        try:
            wait_until(lambda: continuous.lines("mm2: "), 60)
        finally:
            frail.resume()
        watched.write(10)
        watched.until_at(210)
        logged = continuous.lines("mm2: ")
        assert len(logged) == len(set(logged)), "an error is logged once"

        # Reset to offset 30: records that are copied again are compared, too.
        place = {"cluster": f"{unique}-a", "partition": 0, "topic": watched.topic}
        watched.reset([{"partition": place, "offset": {"offset": 29}}])
        back, other = watched.until(lambda found: all(found) and [one.target for one in found if one] == [390, 210])
        assert (back.offset, back.records, back.differences) == (210, 390, {})
        assert (other.offset, other.records) == (210, 210)

        # The remote topic is deleted and recreated: no record is verified until it has been copied again.
        for done in admin_of(frail).delete_topics([watched.remote]).values():
            done.result(30)
        wait_until(lambda: partitions_of(frail, watched.remote) == 0 or watched.verified() == [None, None], 60)
        with suppress(Exception):  # or the flow has created it
            create(frail, watched.remote, 2)
        watched.until(lambda found: found == [None, None])
        watched.reset(None)
        again = watched.until_at(210)
        assert [(one.first, one.checked, one.records, one.target, one.differences) for one in again] == [
            (0, 210, 210, 210, {})
        ] * 2
        # Until it was copied again, all its records were missing, and a pass in that time says so.
        found = [part for report in continuous.reports for part in report["partitions"] if part["differences"]]
        assert all(part["differences"] == {"missing": 210} for part in found), found
        assert all("the remote topic was recreated" in note for part in found for note in part["notes"]), found
        assert all(part["notes"] for part in found), found
        assert continuous.stop() == (1 if found else 0), continuous.log.read_text()[-2000:]
    finally:
        continuous.clean_up()
        watched.process.clean_up()


# -- the command line, and a broker that hangs -------------------------------------------------------------------------


def test_the_command_reports_every_difference_as_json_and_html(
    kafka_a: LocalKafka, kafka_b: LocalKafka, unique: str, tmp_path: Path
) -> None:
    topic = seed(kafka_a, kafka_b, unique, range(9))
    shown = tmp_path / "report.html"
    done = subprocess.run(
        command(
            file_of(kafka_a, kafka_b, unique, tmp_path), unique, "--json", "--html", str(shown), "--patience", "300"
        ),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 1, done.stderr
    check_named(json.loads(done.stdout), topic)
    document = shown.read_text()
    assert "altered timestamp" in document
    assert "secret" not in document + done.stdout, "contents of records are shown"
    assert "://" not in document, "a page that needs nothing else"


def test_a_broker_that_hangs_is_reported_without_hanging_the_command(
    verifier: Verifier, kafka_a: LocalKafka, frail: LocalKafka, tmp_path: Path, unique: str
) -> None:
    file = file_of(kafka_a, frail, unique, tmp_path)
    seed(kafka_a, frail, unique, range(2), size=10_000)
    # 8 MB at 1 MB/s, and the broker hangs in the middle of it.
    verification = Verification(flow_of(file, unique).props, verifier, rate=1_000_000, patience_s=5)
    read = threading.Event()

    def freeze() -> None:
        read.wait(120)
        frail.pause()

    threading.Thread(target=freeze, daemon=True).start()
    began = time.monotonic()
    try:
        report: VerifyReport = verification.run(
            VerifyRequest(), lambda size, _done, _all: read.set() if size > 1_000_000 else None
        )
    finally:
        frail.resume()
    assert read.is_set()
    assert report.verdict is Verdict.INCOMPLETE, encode(report)
    assert time.monotonic() - began < 60 * PATIENCE
    troubles = {row.error for row in report.partitions if row.error}
    assert troubles
    named = f"cluster {unique}-b"
    assert all(named in error or "did not answer" in error for error in troubles), troubles
    assert all(row.records < COUNT for row in report.partitions if row.error)
