"""The limit of the lines that Spark's JVM writes."""

from __future__ import annotations

from mm2.copy.driver.jvm import LineLimit


def test_lines_beyond_the_limit_are_counted_until_the_next_minute() -> None:
    limit = LineLimit(2)
    first = [line for number in range(5) for line in limit.allowed(b"%d\n" % number, 100.0 + number)]
    assert first == [b"0\n", b"1\n", b"[spark] 2 lines within a minute: the rest of this minute is omitted\n"]
    assert list(limit.allowed(b"5\n", 160.0)) == [b"[spark] 3 lines were omitted\n", b"5\n"]


def test_a_minute_within_the_limit_says_nothing() -> None:
    limit = LineLimit(3)
    written = [line for number in range(6) for line in limit.allowed(b"%d\n" % number, 60.0 * (number // 2))]
    assert written == [b"%d\n" % number for number in range(6)]
