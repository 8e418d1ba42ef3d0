"""Dates as text in Java's patterns (java.text.SimpleDateFormat, lenient, in UTC and English).

Formatting supports every letter. Parsing supports year, month, day, hour, minute, second, millisecond, AM/PM, day of
the year, names of months and weekdays, and zones as offsets or as UTC and GMT; patterns with weeks cannot be parsed. As
in Java, numbers may exceed the range of their field (month 13 is January). Unlike in Java, dates before 15 October 1582
are in the Gregorian calendar, too.
"""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import dataclass
from typing import Final

from mm2.connect.data.logical import MS_PER_DAY
from mm2.connect.data.numbers import fits, wrap

_LETTERS: Final = frozenset("GyYMLwWDdFEuaHkKhmsSzZX")
_UNPARSED: Final = frozenset("YwWFu")
_MONTHS: Final = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
_DAYS: Final = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_OFFSET: Final = re.compile(r"(?:GMT|UTC)?([+-])(\d{1,2}):?(\d{2})?")
_NUMBER: Final = re.compile(r"-?\d+")


class DatePatternError(ValueError):
    """The pattern is not valid for SimpleDateFormat."""


@dataclass(frozen=True, slots=True)
class _Letters:
    """The same letter, ``count`` times."""

    letter: str
    count: int


_Item = str | _Letters


def _compile(pattern: str) -> list[_Item]:
    items: list[_Item] = []
    literal = ""
    at = 0
    while at < len(pattern):
        char = pattern[at]
        if char == "'":
            end = at + 1
            if pattern[end : end + 1] == "'":
                literal, at = literal + "'", at + 2
                continue
            while True:
                close = pattern.find("'", end)
                if close < 0:
                    raise DatePatternError("Unterminated quote")
                literal += pattern[end:close]
                end = close + 1
                if pattern[end : end + 1] != "'":
                    break
                literal, end = literal + "'", end + 1
            at = end
        elif char.isascii() and char.isalpha():
            if char not in _LETTERS:
                raise DatePatternError(f"Illegal pattern character '{char}'")
            if literal:
                items.append(literal)
                literal = ""
            count = len(pattern[at:]) - len(pattern[at:].lstrip(char))
            if char == "X" and count > 3:
                raise DatePatternError(f"A zone in ISO 8601 has up to three letters X, not {count}")
            items.append(_Letters(char, count))
            at += count
        else:
            literal, at = literal + char, at + 1
    if literal:
        items.append(literal)
    return items


class SimpleDateFormat:
    """One pattern. Raises DatePatternError when it is invalid."""

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self._items = _compile(pattern)

    @property
    def can_parse(self) -> bool:
        """Whether `parse` supports all letters of the pattern."""
        return not any(isinstance(item, _Letters) and item.letter in _UNPARSED for item in self._items)

    def format(self, ms: int) -> str:
        """Format a timestamp in ms since the epoch."""
        days, within = divmod(ms, MS_PER_DAY)
        moment = _Moment(days, within)
        return "".join(item if isinstance(item, str) else _format(item, moment) for item in self._items)

    def parse(self, text: str) -> int | None:
        """Parse the beginning of ``text`` to ms since the epoch; None when it does not match."""
        fields = _Fields()
        at = 0
        for place, item in enumerate(self._items):
            if isinstance(item, str):
                if not text.startswith(item, at):
                    return None
                at += len(item)
                continue
            following = self._items[place + 1] if place + 1 < len(self._items) else ""
            parsed = _parse(item, text, at, fields, adjacent=isinstance(following, _Letters))
            if parsed is None:
                return None
            at = parsed
        return fields.ms()


@dataclass(frozen=True)
class _Moment:
    """Days since 1970 and ms within the day, and the calendar fields that a pattern may contain."""

    days: int
    within_ms: int

    def date(self) -> tuple[int, int, int]:
        """Year, month, day; the year is astronomical: 0 is 1 BC."""
        return _civil(self.days)

    def day_of_year(self) -> int:
        year = self.date()[0]
        return self.days - _days_of(year, 1, 1) + 1

    def week_year(self) -> tuple[int, int]:
        """Year and week; weeks begin on Sunday, and the first week contains 1 January."""
        year = self.date()[0]
        for candidate in (year + 1, year):
            begin = _week_begin(_days_of(candidate, 1, 1))
            if self.days >= begin:
                return candidate, (self.days - begin) // 7 + 1
        raise AssertionError("every day is in a week of its year or of the next")

    def week_of_month(self) -> int:
        year, month, _ = self.date()
        return (self.days - _week_begin(_days_of(year, month, 1))) // 7 + 1


def _format(item: _Letters, moment: _Moment) -> str:
    letter, count = item.letter, item.count
    year, month, day = moment.date()
    hour = moment.within_ms // 3_600_000
    weekday = (moment.days + 3) % 7
    match letter:
        case "G":
            return "AD" if year > 0 else "BC"
        case "y" | "Y":
            shown = moment.week_year()[0] if letter == "Y" else year if year > 0 else 1 - year
            return f"{shown % 100:02d}" if count == 2 else f"{shown:0{count + (shown < 0)}d}"
        case "M" | "L":
            name = _MONTHS[month - 1]
            return name if count >= 4 else name[:3] if count == 3 else f"{month:0{count}d}"
        case "E":
            return _DAYS[weekday] if count >= 4 else _DAYS[weekday][:3]
        case "a":
            return "AM" if hour < 12 else "PM"
        case "z":
            return "Coordinated Universal Time" if count >= 4 else "UTC"
        case "Z":
            return "+0000"
        case "X":
            return "Z"
    numbers = {
        "w": moment.week_year()[1] if letter == "w" else 0,
        "W": moment.week_of_month() if letter == "W" else 0,
        "D": moment.day_of_year() if letter == "D" else 0,
        "d": day,
        "F": (day - 1) // 7 + 1,
        "u": weekday + 1,
        "H": hour,
        "k": hour or 24,
        "K": hour % 12,
        "h": hour % 12 or 12,
        "m": moment.within_ms // 60_000 % 60,
        "s": moment.within_ms // 1000 % 60,
        "S": moment.within_ms % 1000,
    }
    return f"{numbers[letter]:0{count}d}"


class _Fields:
    """The fields parsed so far."""

    def __init__(self) -> None:
        self.bc = False
        self.year = 1970
        self.month = 1
        self.day: int | None = None
        self.day_of_year: int | None = None
        self.hour: int | None = None
        self.half_day_hour: int | None = None
        self.pm = False
        self.minute = self.second = self.ms_of_second = 0
        self.zone_ms = 0
        self.day_named_last = False

    def ms(self) -> int:
        year = 1 - self.year if self.bc else self.year
        if self.day_of_year is not None and (self.day is None or self.day_named_last):
            days = _days_of(year, 1, 1) + self.day_of_year - 1
        else:
            carried, month = divmod(self.month - 1, 12)
            days = _days_of(year + carried, month + 1, 1 if self.day is None else self.day)
        hour = self.hour
        if hour is None:
            hour = (self.half_day_hour or 0) + 12 * self.pm
        seconds = (hour * 60 + self.minute) * 60 + self.second
        return days * MS_PER_DAY + seconds * 1000 + self.ms_of_second - self.zone_ms


def _parse(item: _Letters, text: str, at: int, fields: _Fields, *, adjacent: bool) -> int | None:
    """The position in the text after a field; None when the field does not match."""
    begin = at
    while at < len(text) and text[at] in " \t":
        at += 1
    if at >= len(text):
        return None
    letter, count = item.letter, item.count
    match letter:
        case "G":
            fields.bc = text[at : at + 2].upper() == "BC"
            return at + 2 if text[at : at + 2].upper() in {"AD", "BC"} else None
        case "M" | "L" if count > 2:
            return _parse_name(text, at, _MONTHS, fields, "month")
        case "E":
            return _parse_name(text, at, _DAYS, fields, None)
        case "a":
            fields.pm = text[at : at + 2].upper() == "PM"
            return at + 2 if text[at : at + 2].upper() in {"AM", "PM"} else None
        case "z" | "Z" | "X":
            return _parse_zone(item, text, at, fields)
    if adjacent and begin + count > len(text):
        return None
    found = _NUMBER.match(text[: begin + count] if adjacent else text, at)
    if found is None:
        return None
    number = int(found[0])
    value = wrap(number, 32) if fits(number, 64) else (2**31 - 1 if number > 0 else -(2**31))
    _set(fields, item, value, found[0])
    return found.end()


def _set(fields: _Fields, item: _Letters, value: int, digits: str) -> None:
    match item.letter:
        case "y":
            if item.count <= 2 and len(digits) == 2 and digits.isdecimal():
                value = _century(value)
            fields.year = value
        case "M" | "L":
            fields.month = value
        case "d":
            fields.day, fields.day_named_last = value, False
        case "D":
            fields.day_of_year, fields.day_named_last = value, True
        case "H":
            fields.hour = value
        case "k":
            fields.hour = 0 if value == 24 else value
        case "K":
            fields.half_day_hour = value
        case "h":
            fields.half_day_hour = 0 if value == 12 else value
        case "m":
            fields.minute = value
        case "s":
            fields.second = value
        case "S":
            fields.ms_of_second = value
        case letter:
            raise DatePatternError(f"'{letter}' cannot be parsed")


def _century(two_digits: int) -> int:
    """A two-digit year is at most 20 years in the future and at most 80 years in the past."""
    first = dt.datetime.now(dt.UTC).year - 80
    year = first - first % 100 + two_digits
    return year + 100 if two_digits < first % 100 else year


def _parse_name(text: str, at: int, names: tuple[str, ...], fields: _Fields, what: str | None) -> int | None:
    for form in (names, tuple(name[:3] for name in names)):
        found = [
            (len(name), place) for place, name in enumerate(form) if text[at : at + len(name)].lower() == name.lower()
        ]
        if found:
            length, place = max(found)
            if what == "month":
                fields.month = place + 1
            return at + length
    return None


def _parse_zone(item: _Letters, text: str, at: int, fields: _Fields) -> int | None:
    if item.letter == "X" and text.startswith("Z", at):
        return at + 1
    if found := _OFFSET.match(text, at):
        minutes = int(found[2]) * 60 + int(found[3] or 0)
        if item.letter != "X" and found[3] is None and len(found[2]) < 2:
            return None
        fields.zone_ms = (minutes if found[1] == "+" else -minutes) * 60_000
        return found.end()
    if item.letter != "X" and text[at : at + 3].upper() in {"UTC", "GMT"}:
        return at + 3
    return None


def _week_begin(days: int) -> int:
    """The Sunday of a day's week."""
    return days - (days + 4) % 7


def _days_of(year: int, month: int, day: int) -> int:
    """Days since 1970 of a date."""
    march_year = year - (month <= 2)
    day_of_year = (153 * ((month + 9) % 12) + 2) // 5 + day - 1
    return march_year * 365 + march_year // 4 - march_year // 100 + march_year // 400 + day_of_year - 719468


def _civil(days: int) -> tuple[int, int, int]:
    """Year, month and day."""
    era, of_era = divmod(days + 719468, 146097)
    year_of_era = (of_era - of_era // 1460 + of_era // 36524 - of_era // 146096) // 365
    day_of_year = of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    month = (5 * day_of_year + 2) // 153
    day = day_of_year - (153 * month + 2) // 5 + 1
    year = year_of_era + era * 400
    return (year, month + 3, day) if month < 10 else (year + 1, month - 9, day)
