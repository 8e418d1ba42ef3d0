"""Many partitions with one cause are one message of bounded length."""

from __future__ import annotations

from mm2.copy.causes import CAUSES_SHOWN, LONGEST_TEXT, Cause, StoppedPartition, causes_of, sentences_of, shortened
from mm2.kafka.structs import TopicPartition


def stopped(
    topic: str, number: int, reason: str, state: str = "FAILED", since_ms: int | None = None
) -> StoppedPartition:
    return StoppedPartition(TopicPartition(topic, number), state, reason, since_ms)


def test_reasons_that_differ_in_topics_and_numbers_are_one_cause() -> None:
    rows = [stopped(f"t{at % 7}", at, f"t{at % 7}-{at}: offset {at * 3} broke", since_ms=100 - at) for at in range(79)]
    (cause,) = causes_of(rows)
    assert cause == Cause("FAILED", 79, TopicPartition("t0", 0), "t0-0: offset 0 broke", 22)
    assert str(cause) == "t0-0: offset 0 broke (78 more partitions FAILED for the same cause)"
    assert sentences_of(causes_of(rows[:1])) == ["t0-0: offset 0 broke"]


def test_states_and_texts_are_different_causes_and_the_most_frequent_one_comes_first() -> None:
    rows = [stopped("t", 0, "a"), stopped("t", 1, "b"), stopped("t", 2, "b"), stopped("t", 3, "b", "REFUSED")]
    assert [(one.state, one.reason, one.partitions) for one in causes_of(rows)] == [
        ("FAILED", "b", 2),
        ("FAILED", "a", 1),
        ("REFUSED", "b", 1),
    ]


def test_many_causes_and_long_texts_are_limited() -> None:
    rows = [stopped("t", at, chr(97 + at) * 5_000) for at in range(20)]
    sentences = sentences_of(causes_of(rows))
    assert len(sentences) == CAUSES_SHOWN + 1
    assert sentences[-1] == "15 more partitions for 15 other causes"
    assert sum(map(len, sentences)) < (CAUSES_SHOWN + 1) * (LONGEST_TEXT + 100)
    assert shortened("x" * 401) == "x" * 400 + "… (1 more characters)"
