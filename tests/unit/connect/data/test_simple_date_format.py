import datetime as dt

import pytest

from mm2.connect.data.simple_date_format import DatePatternError, SimpleDateFormat

MS = 1_582_945_445_006  # 2020-02-29T03:04:05.006Z, a Saturday


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("yyyy-MM-dd'T'HH:mm:ss.SSSXXX", "2020-02-29T03:04:05.006Z"),
        ("EEE, d MMM yy h 'o''clock' a z", "Sat, 29 Feb 20 3 o'clock AM UTC"),
        ("EEEE MMMM D", "Saturday February 60"),
        ("w W F u YYYY G", "9 5 5 6 2020 AD"),
        ("k K Z S SSSSSS ''", "3 3 +0000 6 000006 '"),
    ],
)
def test_dates_are_formatted(pattern: str, text: str) -> None:
    assert SimpleDateFormat(pattern).format(MS) == text


@pytest.mark.parametrize(
    ("pattern", "text", "moment"),
    [
        ("yyyy-MM-dd", "2020-02-29", "2020-02-29T00:00:00"),
        ("yyyy-MM-dd", "2020-13-45 and more", "2021-02-14T00:00:00"),
        ("yyyy-MM-dd", "2020-2-9", "2020-02-09T00:00:00"),
        ("yyyyMMddHHmmss", "20200229030405", "2020-02-29T03:04:05"),
        ("d MMM yyyy h a", "3 Feb 2020 11 PM", "2020-02-03T23:00:00"),
        ("d MMMM yyyy hh a", "3 february 2020 12 am", "2020-02-03T00:00:00"),
        ("yyyy-MM-dd HH:mm Z", "2020-02-29 03:04 +0130", "2020-02-29T01:34:00"),
        ("yyyy-MM-dd HH:mmX", "2020-02-29 03:04-08", "2020-02-29T11:04:00"),
        ("yyyy D", "2020 60", "2020-02-29T00:00:00"),
    ],
)
def test_dates_are_parsed(pattern: str, text: str, moment: str) -> None:
    read = SimpleDateFormat(pattern).parse(text)
    assert read is not None
    assert read == (
        dt.datetime.fromisoformat(moment + "+00:00") - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
    ) // dt.timedelta(milliseconds=1)


@pytest.mark.parametrize("text", ["", "x", "2020", "2020-", "2020/02/29"])
def test_text_that_is_not_a_date_returns_none(text: str) -> None:
    assert SimpleDateFormat("yyyy-MM-dd").parse(text) is None


def test_old_dates_are_in_the_gregorian_calendar_too() -> None:
    days = [SimpleDateFormat("yyyy-MM-dd").parse(text) for text in ("1582-10-14", "1582-10-15", "0004-02-29")]
    assert days == [-141_428 * 86_400_000, -141_427 * 86_400_000, -718_008 * 86_400_000]
    assert SimpleDateFormat("yyyy-MM-dd G").format(-719_163 * 86_400_000) == "0001-12-31 BC"


@pytest.mark.parametrize("pattern", ["b", "yyyy-mm-ddT", "'open", "XXXX"])
def test_a_wrong_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(DatePatternError):
        SimpleDateFormat(pattern)


def test_week_years_can_only_be_formatted() -> None:
    assert not SimpleDateFormat("YYYY-ww").can_parse
    assert SimpleDateFormat("yyyy-MM-dd").can_parse
