"""Remote topics that RegexRouter names: beside Java's MirrorMaker 2, and when the router changes."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from mm2.cli.mm2 import main
from mm2.sandbox.kafka import LocalKafka
from tests.integration.copy_flow import Traffic, create
from tests.integration.java_mirror import JavaMirrorProcess
from tests.integration.mirror.test_policy_changes import (
    MODES,
    PARTITIONS,
    FlowFiles,
    assert_complete,
    assert_verified,
    create_here,
    forget_configs,
    has_more_everywhere,
    numbers,
    plan_notes,
)
from tests.integration.mirror.test_record_changes import assert_same, await_equal, file_of, totals
from tests.integration.mirror_process import MirrorProcess, contents, ends, partitions_of, topics_of
from tests.integration.record_chains import STAMP, chain, matches, when, write_random
from tests.support.waiting import PATIENCE, wait_until


def route(regex: str, replacement: str) -> tuple[str, dict[str, str]]:
    return "RegexRouter", {"regex": regex, "replacement": replacement}


@pytest.mark.slow
@pytest.mark.timeout(int(600 * PATIENCE))
def test_records_are_in_the_topics_that_java_names(
    kafka_a: LocalKafka, kafka_b: LocalKafka, tmp_path: Path, unique: str
) -> None:
    """Given two topics; a flow whose router has a predicate that is true for one of them; and a flow with transformations
    before and after its router that depend on the name; validates the names, and each record.
    """
    names, one, two = f"{unique}-(one|two)", f"{unique}-one", f"{unique}-two"
    for index, topic in enumerate((one, two)):
        create(kafka_a, topic, PARTITIONS, retention__ms="-1")  # the records have old timestamps
        wait_until(lambda topic=topic: partitions_of(kafka_a, topic) == PARTITIONS)  # type: ignore[misc]
        write_random(kafka_a, topic, PARTITIONS, 500, seed=index)
    some, all_ = f"r{unique[-6:]}", f"q{unique[-6:]}"
    renamed = route(f"{some}[.](.*)", "eu-$1")
    chains = {
        some: chain((renamed[0], {**renamed[1], **when(matches(".*-one"))})),
        all_: chain(
            (STAMP[0], {**STAMP[1], **when(matches(f"{all_}[.].*"))}),
            route("(.*)[.](.*)", "$2-$1"),
            ("Filter", when(("HasHeaderKey", "name", "a"))),
            ("DropHeaders", {"headers": "b", **when(matches(f".*-one-{all_}"))}),
            given={"header.converter": "org.apache.kafka.connect.storage.SimpleHeaderConverter"},
        ),
    }
    topics = [f"eu-{one}", f"{some}.{two}", f"{one}-{all_}", f"{two}-{all_}"]
    for topic in topics:  # the broker would create them for Java with one partition
        create(kafka_b, topic, PARTITIONS, retention__ms="-1")
        wait_until(lambda topic=topic: partitions_of(kafka_b, topic) == PARTITIONS)  # type: ignore[misc]
    java = JavaMirrorProcess(file_of(tmp_path / "java", kafka_a, kafka_b, names, chains), tmp_path / "java.log", "T")
    try:
        ours = MirrorProcess(file_of(tmp_path / "ours", kafka_a, kafka_a, names, chains), tmp_path / "ours.log", "T")
        try:
            for broker, process in ((kafka_b, java), (kafka_a, ours)):
                wait_until(lambda broker=broker: all(totals(broker, topics)), 120, detail=process.tail)  # type: ignore[misc]
            await_equal(java, kafka_b, ours, kafka_a, topics)
            found = [(topic, contents(kafka_b, topic), contents(kafka_a, topic)) for topic in topics]
        finally:
            ours.clean_up()
    finally:
        java.clean_up()
    for topic, wanted, got in found:
        assert_same({"topic": topic}, wanted, got)
        assert sum(map(len, got)) > 200
    assert not {f"{some}.{one}", f"{all_}.{one}", f"{all_}.{two}"} & topics_of(kafka_a)


def routed(flow: str, alias: str, replacement: str) -> Mapping[str, str]:
    """A router of the topics of a test, not of the flow's checkpoints; "": none."""
    if not replacement:
        return {}
    name, settings = route(f"{alias}[.](.*-routed)", replacement)
    return {f"{flow}.{key}": value for key, value in chain((name, settings)).items()}


@pytest.mark.slow
@pytest.mark.timeout(int(600 * PATIENCE))
@pytest.mark.parametrize("mode", MODES)
def test_no_record_is_lost_where_the_router_changes_after_each_kill(
    kafka_a: LocalKafka,
    kafka_b: LocalKafka,
    tmp_path: Path,
    unique: str,
    mode: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Given a flow that commits seldom; when it is killed, and started with a router, with another one, and with a third
    one; validates that no record is missing and, in exactly-once mode, that each is in one topic; that `mm2 plan` announces the names, and that
    `mm2 verify` and `mm2 gaps` find nothing missing.
    """
    alias, topic = f"k{unique[-6:]}", f"{unique}-routed"
    create_here(kafka_a, topic)
    files = FlowFiles(tmp_path, alias, (kafka_a, kafka_b), topics=topic, copy__commit__interval__ms="5000")
    steps = [("", f"{alias}.{topic}"), ("eu-$1", f"eu-{topic}"), ("$1", topic), ("us-$1", f"us-{topic}")]
    process: MirrorProcess | None = None
    try:
        with Traffic(kafka_a, topic, PARTITIONS, per_second=1_000) as traffic:
            for number, (replacement, remote) in enumerate(steps):
                modes = MODES[mode]
                exactly_once = {"B.exactly.once.source.support": modes[number % len(modes)]}
                file = files.write(routed(files.flow, alias, replacement), **exactly_once)
                if number:
                    forget_configs(kafka_b, alias)
                    (note, *_) = plan_notes(file, files.flow, capsys)
                    assert f"{steps[number - 1][1]} -> {remote}" in note
                before = ends(kafka_b, remote) or [0] * PARTITIONS
                process = MirrorProcess(file, files.log(number), "B")
                process.eventually(functools.partial(has_more_everywhere, kafka_b, remote, before, 1_500), 120)
                if number < len(steps) - 1:
                    process.kill9(whole_family=True)
            traffic.finish()
        assert process is not None
        source, names = numbers(kafka_a, topic), sorted({remote for _, remote in steps})
        last = [rows[-1:] for rows in source]
        process.eventually(lambda: [rows[-1:] for rows in numbers(kafka_b, steps[-1][1])] == last, 120)
        assert_complete(source, *(numbers(kafka_b, name) for name in names), is_exact=mode == "enabled")
        assert process.stop()[0] == 0
    finally:
        if process is not None:
            process.clean_up()
    capsys.readouterr()
    assert main(["gaps", str(file), files.flow, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["totals"] == {}
    assert_verified(file, files.flow, topic)
    print(f"{mode}: {len(steps) - 1} kills, {traffic.sent} records")  # noqa: T201
