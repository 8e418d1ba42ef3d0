"""Generated patterns match as in Java; a pattern that would stop the process does not."""

from __future__ import annotations

import threading
import time

import pytest

from mm2.config.configdef import ConfigException
from mm2.config.definitions.java_regex import PatternTooSlow, compile_java
from mm2.mirror.checkpoint_connector import MirrorCheckpointConnector
from mm2.mirror.common.connector import MirrorConnector
from mm2.mirror.filters import DefaultTopicFilter
from mm2.mirror.source_connector import MirrorSourceConnector
from tests.tools.regex_check import compare

EVIL = "(([a-z.]|[a-z.]|[a-z.]|[a-z.])*)[!?]"


def test_generated_patterns_match_as_in_java() -> None:
    """A sample; `python -m tests.tools.regex_check` compares 100,000."""
    outcome = compare(3_000, seed=1)
    assert outcome.different == []
    assert len(outcome.refused) < 30, outcome.refused


def test_a_pattern_that_backtracks_without_end_is_refused_and_does_not_hold_the_interpreter() -> None:
    waits: list[float] = []
    is_over = threading.Event()

    def beat() -> None:
        while not is_over.is_set():
            began_s = time.monotonic()
            time.sleep(0.01)
            waits.append(time.monotonic() - began_s)

    beating = threading.Thread(target=beat)
    beating.start()
    try:
        with pytest.raises(PatternTooSlow, match="takes more than 1 s to match 'aaaa"):
            compile_java(EVIL)
    finally:
        is_over.set()
        beating.join()
    assert len(waits) > 10
    assert sorted(waits)[len(waits) // 2] < 0.2


def test_a_topic_filter_whose_pattern_backtracks_without_end_names_its_key() -> None:
    with pytest.raises(ConfigException, match=r"for configuration topics: the pattern .* takes more than 1 s to match"):
        DefaultTopicFilter().configure({"topics": f"orders, {EVIL}"})


@pytest.mark.parametrize(
    ("connector", "key"),
    [
        (MirrorSourceConnector, "topics"),
        (MirrorSourceConnector, "config.properties.exclude"),
        (MirrorCheckpointConnector, "groups.exclude"),
    ],
)
def test_a_pattern_that_backtracks_without_end_is_refused_before_it_is_stored(
    connector: type[MirrorConnector], key: str
) -> None:
    """REST stored it, and the connector failed; other invalid patterns do so in Java, and here."""
    props = {"source.cluster.alias": "A", "target.cluster.alias": "B"}
    errors = connector().validate({**props, key: f"orders, {EVIL}"})
    assert [(name, "takes more than 1 s" in message) for name, message in errors if "takes" in message] == [(key, True)]
    assert key not in dict(connector().validate({**props, key: "orders, *"}))


def test_look_behind_of_different_lengths_is_java_s() -> None:
    pattern = compile_java(r".*(?<!\.internal|-dlq)")
    assert [bool(pattern.fullmatch(name)) for name in ("orders", "orders-dlq", "a.internal")] == [True, False, False]
