import pytest

from mm2.ui import wording


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),  # noqa: RUF001
        (0, "0 s"),
        (0.042, "42 ms"),
        (3.14, "3.1 s"),
        (59.4, "59 s"),
        (60, "1 min"),
        (200, "3 min 20 s"),
        (7_500, "2 h 5 min"),
        (273_600, "3 d 4 h"),
    ],
)
def test_seconds(value: float | None, text: str) -> None:
    assert wording.seconds(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "–"), (0, "0 B"), (999, "999 B"), (1_500, "1.5 kB"), (2_340_000_000, "2.3 GB")],  # noqa: RUF001
)
def test_sizes(value: int | None, text: str) -> None:
    assert wording.size(value) == text


def test_counts_and_rates() -> None:
    assert wording.count(1_234_567) == "1,234,567"
    assert wording.rate(0.25) == "0.2/s"
    assert wording.rate(12_400.4) == "12,400/s"
    assert wording.rate(0) == wording.rate(0.01) == "0/s"
    assert wording.plural(1, "record") == "1 record"
    assert wording.plural(2_000, "record") == "2,000 records"
    assert wording.moment(1_795_327_951_000) == "2026-11-22 06:12:31 UTC"
