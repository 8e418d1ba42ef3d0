"""The command line of bin/chaos, and the figures of its verdict."""

import pytest

from tests.chaos import found, main
from tests.endurance.composition import Victim, parse_victims
from tests.endurance.fault_run import Outcome
from tests.endurance.positions import Verdict
from tests.endurance.sides import broker_settings, replication_factors
from tests.faults.oracle import Judgment, Rows, compare


def test_victims_are_sorted_and_deduplicated() -> None:
    assert parse_victims("network, broker,network") == (Victim.BROKER, Victim.NETWORK)
    assert parse_victims("disk-stall") == (Victim.DISK_STALL,)


@pytest.mark.parametrize(
    ("text", "output"),
    [("broker,disk,brain", "unknown victims: brain, disk (choose from broker, follower, "), (" , ", "no victims")],
)
def test_an_unknown_victim_is_reported_with_exit_code_2(
    text: str, output: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--victims", text])
    assert ended.value.code == 2
    assert output in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("arguments", "output"),
    [
        (["--brokers", "2", "--replicas", "3"], "--replicas 3 needs as many --brokers"),
        (["--brokers", "4"], "invalid choice: 4"),
        (["--brokers", "3", "--replicas", "1"], "--replicas 1 cannot have two in sync"),
        (["--brokers", "1", "--victims", "follower"], "a single broker has none of these victims: follower"),
    ],
)
def test_impossible_clusters_are_rejected_with_exit_code_2(
    arguments: list[str], output: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert output in " ".join(capsys.readouterr().err.split())


def test_targets_of_three_brokers_need_two_in_sync_and_targets_expire_producers_early() -> None:
    target, source, small = broker_settings("B", 3, 2), broker_settings("A", 3, 2), broker_settings("B", 2, 2)
    assert target["min.insync.replicas"] == "2"
    assert target["producer.id.expiration.check.interval.ms"] == "1000"
    assert target["default.replication.factor"] == source["default.replication.factor"] == "2"
    assert not {"min.insync.replicas", "producer.id.expiration.check.interval.ms"} & source.keys()
    assert "min.insync.replicas" not in small
    assert all(one["log.retention.ms"] == "-1" for one in (target, source, small))


def test_every_topic_of_a_flow_has_the_replicas() -> None:
    factors = replication_factors(3)
    assert set(factors.values()) == {"3"}
    assert {"replication.factor", "ledger.topic.replication.factor", "offset.storage.replication.factor"} <= set(
        factors
    )


def test_the_figures_count_records_and_not_messages() -> None:
    judgment = Judgment()
    source = Rows((offset, offset) for offset in range(10))
    compare(judgment, 0, source, Rows([(0, 0), (1, 5), (2, 5), (3, 3)]), {})
    outcome = Outcome(judgments={"a": judgment, "b": Judgment()}, positions=Verdict(["one"], ["two"]), sampled=7)
    lines = [" ".join(line.split()) for line in found(outcome)]
    assert lines == [
        "7 lost",
        "1 doubled",
        "1 reordered",
        "0 altered",
        "4 skipped by a copy that resumed after them",
        "0 unexplained by the ledger",
        "0 with a wrong reason in the ledger",
        "1 positions above the high watermark, of 7 sampled (1 uncertain, 0 without an answer)",
        "0 positions that went back",
    ]
