"""Logical types: a schema name that gives the stored values another type (org.apache.kafka.connect.data).

  name        stored as                                  in Python
  Decimal     bytes: unscaled integer; parameter scale   decimal.Decimal with that scale
  Date        int32: days since the epoch                datetime.date
  Time        int32: milliseconds since midnight         datetime.time
  Timestamp   int64: milliseconds since the epoch        datetime.datetime with a timezone

Java uses one class for the last three, and supports years after 9999 and before 1; here these raise DataError.
"""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any, Final

from mm2.connect.data import numbers
from mm2.connect.data.schema import Schema, Type
from mm2.connect.errors import DataError

DECIMAL: Final = "org.apache.kafka.connect.data.Decimal"
DATE: Final = "org.apache.kafka.connect.data.Date"
TIME: Final = "org.apache.kafka.connect.data.Time"
TIMESTAMP: Final = "org.apache.kafka.connect.data.Timestamp"
SCALE: Final = "scale"

MS_PER_DAY: Final = 24 * 60 * 60 * 1000
EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
EPOCH_DAY: Final = EPOCH.date()

DATE_SCHEMA: Final = Schema(Type.INT32, name=DATE, version=1)
TIME_SCHEMA: Final = Schema(Type.INT32, name=TIME, version=1)
TIMESTAMP_SCHEMA: Final = Schema(Type.INT64, name=TIMESTAMP, version=1)
OPTIONAL_DATE_SCHEMA: Final = DATE_SCHEMA.as_optional()
OPTIONAL_TIME_SCHEMA: Final = TIME_SCHEMA.as_optional()
OPTIONAL_TIMESTAMP_SCHEMA: Final = TIMESTAMP_SCHEMA.as_optional()

Moment = dt.date | dt.time | dt.datetime
"""A value of one of the three types of time."""


def decimal_schema(scale: int, *, optional: bool = False) -> Schema:
    """The schema of decimals with this scale (digits after the decimal point)."""
    return Schema(Type.BYTES, optional, name=DECIMAL, version=1, parameters={SCALE: str(scale)})


def decimal_scale(schema: Schema) -> int:
    """The scale in a Decimal's schema. Raises DataError when it has none."""
    text = schema.parameters.get(SCALE)
    if text is None:
        raise DataError("Invalid Decimal schema: scale parameter not found.")
    try:
        return int(text)
    except ValueError as error:
        raise DataError(f"Invalid scale parameter found in Decimal schema: {text}") from error


def decimal_to_bytes(schema: Schema, value: Decimal) -> bytes:
    """Raises DataError when the value's scale is not the schema's."""
    if not value.is_finite():
        raise DataError(f"{value} is not a valid Decimal: only finite numbers are supported")
    wanted, found = decimal_scale(schema), numbers.scale(value)
    if wanted != found:
        raise DataError(
            f"Decimal value has mismatching scale for given Decimal schema. Schema has scale {wanted}, "
            f"value has scale {found}."
        )
    return numbers.twos_complement(numbers.unscaled(value))


def decimal_from_bytes(schema: Schema, data: bytes) -> Decimal:
    """Raises DataError for empty bytes."""
    if not data:
        raise DataError("A Decimal needs at least one byte")
    return numbers.from_unscaled(int.from_bytes(data, "big", signed=True), decimal_scale(schema))


def date_from_days(days: int) -> dt.date:
    """Raises DataError outside of the years 1 to 9999."""
    try:
        return EPOCH_DAY + dt.timedelta(days=days)
    except OverflowError as error:
        raise DataError(f"A Date of {days} days since 1970 is not within the years 1 to 9999") from error


def days_of(value: dt.date) -> int:
    """Days since the epoch."""
    return (value - EPOCH_DAY).days


def time_from_ms(ms: int) -> dt.time:
    """Raises DataError when it is not within one day."""
    if not 0 <= ms < MS_PER_DAY:
        raise DataError(f"Time values must use number of milliseconds from 0 to 86399999, not {ms}")
    return (EPOCH + dt.timedelta(milliseconds=ms)).time()


def timestamp_from_ms(ms: int) -> dt.datetime:
    """In UTC. Raises DataError outside of the years 1 to 9999."""
    try:
        return EPOCH + dt.timedelta(milliseconds=ms)
    except OverflowError as error:
        raise DataError(f"A Timestamp of {ms} ms since 1970 is not within the years 1 to 9999") from error


def ms_of(value: Moment) -> int:
    """Milliseconds since the epoch, rounded down: the content of Java's Date of the same value.

    Raises DataError for a datetime without a timezone, which is not a point in time.
    """
    if isinstance(value, dt.datetime):
        if value.tzinfo is None:
            raise DataError(f"The datetime {value} has no timezone; a timezone is required")
        return (value - EPOCH) // dt.timedelta(milliseconds=1)
    if isinstance(value, dt.date):
        return days_of(value) * MS_PER_DAY
    return ((value.hour * 60 + value.minute) * 60 + value.second) * 1000 + value.microsecond // 1000


def to_number(schema: Schema, value: Any) -> int:
    """The stored form of a Date, Time or Timestamp. Raises DataError when the value does not match the schema."""
    match schema.name, value:
        case "org.apache.kafka.connect.data.Date", dt.date() if not isinstance(value, dt.datetime):
            return days_of(value)
        case "org.apache.kafka.connect.data.Time", dt.time():
            return ms_of(value)
        case "org.apache.kafka.connect.data.Timestamp", dt.datetime():
            return ms_of(value)
        case _:
            name = (schema.name or "").rpartition(".")[2]
            raise DataError(f"Invalid type for {name}: {type(value).__name__}")


def from_number(schema: Schema, number: int) -> Moment:
    """The Date, Time or Timestamp of a stored value. Raises DataError when there is none."""
    match schema.name:
        case "org.apache.kafka.connect.data.Date":
            return date_from_days(number)
        case "org.apache.kafka.connect.data.Time":
            return time_from_ms(number)
        case _:
            return timestamp_from_ms(number)
