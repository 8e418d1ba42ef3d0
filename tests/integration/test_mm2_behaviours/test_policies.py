"""Topic naming: custom policies and filters, separators, and no replication loops (behaviour 7)."""

from __future__ import annotations

import json
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from mm2.connect.api import RetriableError
from mm2.copy.progress.ledger import entry_record
from mm2.copy.progress.session import LedgerEntry, Mark
from mm2.mirror import source_connector
from mm2.mirror.source_connector import MirrorSourceConnector
from mm2.mirror.topics import provenance
from mm2.sandbox.kafka import LocalKafka
from tests.integration.mirror_flow import admin, create, flow_props, partitions_of, read_all, running, write
from tests.integration.test_mm2_behaviours.admins import BlindAdmin
from tests.support.waiting import wait_until

HERE = "tests.integration.test_mm2_behaviours.policies"
IDENTITY = {"replication.policy.class": "org.apache.kafka.connect.mirror.IdentityReplicationPolicy"}


def props(
    source: LocalKafka, target: LocalKafka, topics: str, aliases: tuple[str, str], more: dict[str, str] | None = None
) -> dict[str, str]:
    own = {
        "topics": topics,
        "heartbeats.replication.enabled": "false",
        "source.cluster.alias": aliases[0],
        "target.cluster.alias": aliases[1],
    }
    return flow_props("MirrorSourceConnector", source, target) | own | (more or {})


def both_ways(a: LocalKafka, b: LocalKafka, topic: str) -> tuple[dict[str, str], dict[str, str]]:
    """The flows of a topic from A to B and back, whose names do not show where it came from."""
    there, back = (f"1{topic}", f"2{topic}"), (f"2{topic}", f"1{topic}")
    return props(a, b, topic, there, IDENTITY), props(b, a, topic, back, IDENTITY)


def assigned(connector: MirrorSourceConnector) -> str | None:
    """The value; None while it is unknown."""
    try:
        return ",".join(config["task.assigned.partitions"] for config in connector.task_configs(1))
    except RetriableError:
        return None


def test_a_policy_and_a_filter_are_found_by_their_python_path(
    kafka_a: LocalKafka, kafka_b: LocalKafka, unique: str
) -> None:
    create(kafka_a, unique)
    create(kafka_a, f"{unique}-long")
    create(kafka_a, f"{unique}_from_B")
    own = {
        "replication.policy.class": f"{HERE}.BehindPolicy",
        "topic.filter.class": f"{HERE}.ShortNames",
        "short.names.max": str(len(f"{unique}_from_B")),
        "short.names.prefix": unique,
    }
    with running(MirrorSourceConnector(), props(kafka_a, kafka_b, "", ("A", "B"), own)) as (connector, _):
        wait_until(
            lambda: assigned(connector) == f"{unique}-0,{unique}-long-0",
            30,
            what="the assignment, without what came from B",
        )
        assert partitions_of(kafka_b, f"{unique}_from_A") == 1
        assert partitions_of(kafka_b, f"{unique}-long_from_A") == 1


def test_java_patterns_and_a_custom_separator(kafka_a: LocalKafka, kafka_b: LocalKafka, unique: str) -> None:
    for name in ("x1", "y", "x.internal", "z"):
        create(kafka_a, f"{unique}-{name}")
    patterns = rf"\Q{unique}-\E(?>[\p{{Lower}}&&[^z]]++)\d?+, {unique}-x\.internal"
    own = {"replication.policy.separator": "__"}
    with running(MirrorSourceConnector(), props(kafka_a, kafka_b, patterns, ("A", unique), own)) as (connector, _):
        wanted = f"{unique}-x.internal-0,{unique}-x1-0,{unique}-y-0"
        wait_until(
            lambda: assigned(connector) == wanted,
            30,
            what="the assignment; a topic that merely ends with .internal is the user's",
        )
        assert partitions_of(kafka_b, f"A__{unique}-x1") == 1
        wait_until(
            lambda: partitions_of(kafka_a, f"mm2-offset-syncs__{unique}__internal") == 1, 30, what="the offset syncs"
        )


def test_07_under_identity_the_flow_that_would_return_a_topic_rejects_it_and_the_other_continues(
    kafka_a: LocalKafka, kafka_b: LocalKafka, unique: str, capfd: pytest.CaptureFixture[str]
) -> None:
    there, back = (f"1{unique}", f"2{unique}"), (f"2{unique}", f"1{unique}")
    create(kafka_a, unique)
    create(kafka_b, f"{unique}-b")
    first = props(kafka_a, kafka_b, f"{unique}.*", there, IDENTITY)
    second = props(kafka_b, kafka_a, f"{unique}.*", back, IDENTITY)
    with running(MirrorSourceConnector(), first) as (forth, _):
        wait_until(lambda: assigned(forth) == f"{unique}-0", 30, what="the assignment of the first")
        with running(MirrorSourceConnector(), second) as (returning, context):
            wait_until(
                lambda: assigned(returning) == f"{unique}-b-0",
                30,
                what="the assignment of the second, without what came from A",
            )
            printed: list[str] = []

            def refused() -> bool:
                printed.extend(capfd.readouterr())
                return f"Topic {unique} of cluster {back[0]} has come from cluster {back[1]}" in "".join(printed)

            wait_until(refused, 30, what="a word about it")
            context.reconfigured.clear()
            create(kafka_a, f"{unique}-later")
            wait_until(lambda: f"{unique}-later-0" in (assigned(forth) or ""), 30, what="a later topic")
            wait_until(
                lambda: f"Topic {unique}-later of" in "".join([*printed, *capfd.readouterr()]),
                30,
                what="a word about that, too",
            )
            assert assigned(forth) == f"{unique}-0,{unique}-later-0", "nor does the first send the second's back"
            assert assigned(returning) == f"{unique}-b-0"
    # The flow that claimed it first keeps it after a restart.
    with running(MirrorSourceConnector(), second), running(MirrorSourceConnector(), first) as (forth, _):
        wait_until(lambda: assigned(forth) == f"{unique}-0,{unique}-later-0", 30, what="the assignment after a restart")


def test_07_of_two_identity_flows_started_at_once_one_rejects_the_topic(
    kafka_a: LocalKafka, kafka_b: LocalKafka, unique: str
) -> None:
    there, back = (f"1{unique}", f"2{unique}"), (f"2{unique}", f"1{unique}")
    create(kafka_a, unique)
    create(kafka_b, unique)
    first = props(kafka_a, kafka_b, unique, there, IDENTITY)
    second = props(kafka_b, kafka_a, unique, back, IDENTITY)
    with (
        running(MirrorSourceConnector(), first) as (forth, _),
        running(MirrorSourceConnector(), second) as (returning, _),
    ):
        both = [f"{unique}-0", ""]
        wait_until(
            lambda: sorted([assigned(forth) or "", assigned(returning) or ""]) == sorted(both), 30, what="a decision"
        )


@pytest.mark.slow
def test_07_under_identity_a_ring_of_three_clusters_has_no_loop(
    kafka_a: LocalKafka, kafka_b: LocalKafka, unique: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    printed: list[str] = []

    def is_printed(sentence: str) -> bool:
        printed.extend(capfd.readouterr())
        return sentence in "".join(printed)

    create(kafka_a, unique)
    with LocalKafka("third", tmp_path / "third") as kafka_c, ExitStack() as stack:
        ring = (("1", kafka_a), ("2", kafka_b), ("3", kafka_c))
        flows = []
        for (here, source), (there, target) in zip(ring, (*ring[1:], ring[0]), strict=True):
            flow = props(source, target, f"{unique}.*", (f"{here}{unique}", f"{there}{unique}"), IDENTITY)
            flows.append(stack.enter_context(running(MirrorSourceConnector(), flow))[0])
            if target is not kafka_a:
                wait_until(lambda target=target: partitions_of(target, unique) == 1, 30, what="a copy")  # type: ignore[misc]
        wait_until(lambda: assigned(flows[-1]) is not None, 30, what="a decision")
        assert [assigned(flow) for flow in flows] == [f"{unique}-0", f"{unique}-0", ""]
        # Topics created on an intermediate cluster are copied further, too, and the flow before it rejects them.
        create(kafka_c, f"{unique}-c")
        wait_until(
            lambda: assigned(flows[1]) == f"{unique}-0" and assigned(flows[2]) == f"{unique}-c-0",
            30,
            what="the assignment of the last",
        )
        wait_until(lambda: assigned(flows[0]) == f"{unique}-0,{unique}-c-0", 30, what="the assignment of the first")
        refusal = f"Topic {unique}-c of cluster 2{unique} has come from cluster 3{unique}"
        wait_until(lambda: is_printed(refusal), 30, what="a log message of the flow that would close the ring")
        assert assigned(flows[1]) == f"{unique}-0"


def test_07_one_cluster_under_two_aliases_does_not_copy_its_copies(kafka_a: LocalKafka, unique: str) -> None:
    create(kafka_a, unique)
    aliases = (f"x{unique}", f"y{unique}")
    with running(MirrorSourceConnector(), props(kafka_a, kafka_a, f".*{unique}", aliases)) as (connector, _):
        wait_until(lambda: assigned(connector) == f"{unique}-0", 30, what="the assignment")
        wait_until(lambda: partitions_of(kafka_a, f"{aliases[0]}.{unique}") == 1, 30, what="the copy")
        create(kafka_a, f"2{unique}")
        wait_until(lambda: assigned(connector) == f"{unique}-0,2{unique}-0", 30, what="another round")
        assert partitions_of(kafka_a, f"{aliases[0]}.{aliases[0]}.{unique}") == 0


def test_07_under_identity_a_cluster_does_not_copy_to_itself(kafka_a: LocalKafka, unique: str) -> None:
    create(kafka_a, unique)
    itself = props(kafka_a, kafka_a, unique, (f"x{unique}", f"y{unique}"), IDENTITY)
    with running(MirrorSourceConnector(), itself) as (connector, _):
        wait_until(lambda: assigned(connector) is not None, 30, what="a decision")
        assert assigned(connector) == ""


def claims_left_s(target: LocalKafka, source_alias: str) -> float:
    """How long the claims of a flow remain valid, from its ledger on the target."""
    rows = dict(read_all(target, f"mm2-ledger.{source_alias}.internal"))
    (lease,) = (value for key, value in rows.items() if json.loads(key or b"{}").get("note") == ["provenance"])
    return float(json.loads(lease or b"")["until.ms"] / 1000 - time.time())


def test_07_claims_hold_while_the_source_is_unreachable_and_end_with_their_flow(
    kafka_b: LocalKafka, unique: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease_s = 3.0
    monkeypatch.setattr(provenance, "LEASE_MS", int(1000 * lease_s))
    monkeypatch.setattr(source_connector, "RENEW_S", 0.5)

    with LocalKafka("stopped", tmp_path / "stopped") as source:
        create(source, unique)
        seldom = {
            f"{job}.interval.seconds": "600" for job in ("refresh.topics", "sync.topic.configs", "sync.topic.acls")
        }
        there = props(source, kafka_b, unique, (f"1{unique}", f"2{unique}"), IDENTITY | seldom)
        with running(MirrorSourceConnector(), there) as (connector, _):
            wait_until(lambda: assigned(connector) == f"{unique}-0", 30, what="the assignment")
            source.kill9()
            killed_s = time.monotonic()
            while time.monotonic() < killed_s + 3 * lease_s:
                assert claims_left_s(kafka_b, f"1{unique}") > 0, "the flow the other way may take its topics"
                time.sleep(0.1)
    wait_until(lambda: claims_left_s(kafka_b, f"1{unique}") < 0, 30, what="the end of the claims")


def test_07_a_stopped_flow_keeps_its_topics(kafka_a: LocalKafka, kafka_b: LocalKafka, unique: str) -> None:
    create(kafka_a, unique)
    there, back = both_ways(kafka_a, kafka_b, unique)
    with running(MirrorSourceConnector(), there) as (connector, _):
        wait_until(lambda: assigned(connector) == f"{unique}-0", 30, what="the assignment")
        wait_until(lambda: partitions_of(kafka_b, unique) == 1, 30, what="the copy")
    assert claims_left_s(kafka_b, f"1{unique}") > 5 * 86_400, (
        "an outage of some days must not turn the direction: all records would be on the source twice"
    )
    with running(MirrorSourceConnector(), back) as (connector, _):
        wait_until(lambda: assigned(connector) is not None, 30, what="a decision")
        assert assigned(connector) == ""


def test_07_a_topic_that_was_deleted_on_the_source_is_not_copied_back(
    kafka_a: LocalKafka, kafka_b: LocalKafka, unique: str
) -> None:
    """A client without DESCRIBE sees the same: then its records would be twice in a topic that is still written."""
    create(kafka_a, unique)
    there, back = both_ways(kafka_a, kafka_b, unique)
    with running(MirrorSourceConnector(), there) as (forth, _):
        wait_until(lambda: assigned(forth) == f"{unique}-0", 30, what="the assignment")
        wait_until(lambda: partitions_of(kafka_b, unique) == 1, 30, what="the copy")
        copied = entry_record(LedgerEntry(unique, 0, unique, Mark(5, 5, 5)))
        write(kafka_b, f"mm2-ledger.1{unique}.internal", [(copied.key, copied.value)], 0)
        for done in admin(kafka_a).delete_topics([unique]).values():
            done.result(30)
        wait_until(lambda: assigned(forth) == "", 30, what="the end of the deleted topic")
        with running(MirrorSourceConnector(), back) as (returning, _):
            wait_until(lambda: assigned(returning) is not None, 30, what="a decision")
            assert assigned(returning) == ""
        assert partitions_of(kafka_a, unique) == 0
        create(kafka_a, unique)
        wait_until(lambda: assigned(forth) == f"{unique}-0", 30, what="the new topic")


def test_an_unreadable_ledger_of_the_source_blocks_only_new_topics(
    kafka_a: LocalKafka,
    kafka_b: LocalKafka,
    unique: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    create(kafka_a, unique)
    create(kafka_a, f"mm2-ledger.0{unique}.internal", config={"cleanup.policy": "compact"})
    watched = IDENTITY | {"forwarding.admin.class": "tests.integration.test_mm2_behaviours.admins.BlindAdmin"}
    aliases = (f"1{unique}", f"2{unique}")
    with running(MirrorSourceConnector(), props(kafka_a, kafka_b, f"{unique}.*", aliases, watched)) as (connector, _):
        wait_until(lambda: assigned(connector) == f"{unique}-0", 30, what="the assignment")
        monkeypatch.setattr(BlindAdmin, "blind", True)
        create(kafka_a, f"{unique}-later")
        printed: list[str] = []

        def is_printed() -> bool:
            printed.extend(capfd.readouterr())
            return "Refreshing topics failed and is tried again: " in "".join(printed)

        wait_until(is_printed, 30, what="the reason")
        assert f"mm2-ledger.0{unique}.internal" in "".join(printed)
        assert assigned(connector) == f"{unique}-0"
        assert partitions_of(kafka_b, f"{unique}-later") == 0
        monkeypatch.setattr(BlindAdmin, "blind", False)
        wait_until(lambda: assigned(connector) == f"{unique}-0,{unique}-later-0", 30, what="the topic that waited")


def test_without_a_ledger_an_identity_flow_copies_and_reports_the_reduced_guarantees(
    kafka_a: LocalKafka, kafka_b: LocalKafka, unique: str, capfd: pytest.CaptureFixture[str]
) -> None:
    create(kafka_a, unique)
    none = IDENTITY | {"ledger.topic.replication.factor": "3"}  # more replicas than brokers
    aliases = (f"1{unique}", f"2{unique}")
    with running(MirrorSourceConnector(), props(kafka_a, kafka_b, unique, aliases, none)) as (connector, _):
        wait_until(lambda: assigned(connector) == f"{unique}-0", 30, what="the assignment")
    assert "so other flows do not know where its topics come from" in "".join(capfd.readouterr())
