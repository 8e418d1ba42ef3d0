import pytest

from mm2.evidence import counted
from mm2.ui.elements import wording


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


def test_a_lower_bound_is_marked() -> None:
    assert wording.at_least(1_200, is_exact=True) == "1,200"
    assert wording.at_least(1_200, is_exact=False) == "at least 1,200"
    assert wording.at_least(None, is_exact=False) == wording.UNKNOWN


def test_counts_and_rates() -> None:
    assert wording.count(1_234_567) == "1,234,567"
    assert wording.rate(0.25) == "0.2/s"
    assert wording.rate(12_400.4) == "12,400/s"
    assert wording.rate(0) == wording.rate(0.01) == "0/s"
    assert counted(1, "record") == "1 record"
    assert counted(2_000, "record") == "2,000 records"
    assert counted(2, "property") == "2 properties"
    assert wording.moment(1_795_327_951_000) == "2026-11-22 06:12:31 UTC"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("500000", 500_000),
        ("500k", 500_000),
        (" 20MB ", 20_000_000),
        ("1 g", 1_000_000_000),
        ("0", 0),
        ("b", None),
        ("-1", None),
        ("1.5k", None),
    ],
)
def test_limits(text: str, value: int | None) -> None:
    assert wording.bytes_of(text) == value


def test_workers_have_names_instead_of_uuids() -> None:
    one, two = (f"pod-1/A->B/{letter * 8}-1111-2222-3333-444444444444" for letter in "ab")
    assert wording.worker_name(one, [one]) == "pod-1"
    assert [wording.worker_name(each, [one, two]) for each in (one, two)] == ["pod-1 (aaaaaa)", "pod-1 (bbbbbb)"]
    assert wording.worker_name(one.removeprefix("pod-1/"), [one]) == "aaaaaa"
    assert wording.worker_name("10.0.0.1:8083", []) == "10.0.0.1:8083"
