"""Java's numbers: integers that wrap, single precision, and the text of floating point (java.lang.Double.toString)."""

from __future__ import annotations

import math
import struct
from decimal import Decimal
from fractions import Fraction
from typing import Final, Self

from mm2.config.definitions.values import floating_point

LONG_MIN: Final = -(2**63)
LONG_MAX: Final = 2**63 - 1


class Float32(float):
    """A single-precision float, for values without a schema: Java prints 0.1f as 0.1, and Python has no such type."""

    __slots__ = ()

    def __new__(cls, value: float | Decimal) -> Self:
        return super().__new__(cls, single(value))


def single(value: float | Decimal) -> float:
    """The nearest single-precision float, ties to even; infinite outside of its range, like a cast in Java."""
    double = nearest_double(value)
    if math.isinf(double) or math.isnan(double):
        return double
    if isinstance(value, int | Decimal) and double != 0 and Fraction(value) != Fraction(double):
        # Rounding twice can give a wrong result if the double is a tie between two floats. Setting the last bit avoids
        # the tie.
        if abs(Fraction(double)) > abs(Fraction(value)):
            double = math.nextafter(double, 0.0)
        bits = struct.unpack(">q", struct.pack(">d", double))[0]
        double = struct.unpack(">d", struct.pack(">q", bits | 1))[0]
    try:
        nearest: float = struct.unpack(">f", struct.pack(">f", double))[0]
    except OverflowError:
        return math.copysign(math.inf, double)
    return nearest


def nearest_double(value: float | Decimal) -> float:
    """The nearest double; infinite outside of its range."""
    if isinstance(value, int):
        try:
            return float(value)
        except OverflowError:
            return math.copysign(math.inf, value)
    return float(value)


def wrap(value: int, bits: int) -> int:
    """The lowest bits of an integer as a signed number, like casts between Java's integer types."""
    half = 1 << (bits - 1)
    return ((value + half) & ((1 << bits) - 1)) - half


def to_integer(value: float, bits: int) -> int:
    """A cast from floating point in Java: truncates, saturates outside of the range, returns 0 for NaN.

    Types narrower than 32 bits are cast to 32 bits first and then wrap.
    """
    if math.isnan(value):
        return 0
    reach = max(bits, 32)
    low, high = -(1 << (reach - 1)), (1 << (reach - 1)) - 1
    whole = (high if value > 0 else low) if math.isinf(value) else min(max(int(value), low), high)
    return wrap(whole, bits)


def whole(value: Decimal) -> int:
    """The 64 lowest bits of a decimal's integer part (BigDecimal.longValue)."""
    if value.adjusted() < 0 or not value:
        return 0
    # 10**64 is a multiple of 2**64, so the lowest 64 bits are 0.
    return 0 if scale(value) <= -64 else wrap(int(value), 64)


def fits(value: int, bits: int) -> bool:
    """Whether an integer fits this width."""
    return -(1 << (bits - 1)) <= value < (1 << (bits - 1))


def double_text(value: float) -> str:
    """As Double.toString of Java 19 and later: the shortest unique decimal, with at least one digit after the point."""
    return floating_point(value, *_digits(value, float))


def single_text(value: float) -> str:
    """As Float.toString of Java 19 and later, for a single-precision float."""
    return floating_point(value, *_digits(value, single))


def _digits(value: float, read: type[float] | object) -> tuple[str, int]:
    """Shortest digits, and the power of ten of the first one. As in Java, at least two digits are tried."""
    if value == 0 or math.isinf(value) or math.isnan(value):
        return "0", 0
    positive = abs(value)
    for precision in range(1, 17):
        text = f"{positive:.{precision}e}"
        again = float(text) if read is float else single(float(text))
        if again == positive:
            break
    digits, _, exponent = text.partition("e")
    return digits.replace(".", "").rstrip("0") or "0", int(exponent)


def unscaled(value: Decimal) -> int:
    """The digits of a decimal as an integer (BigDecimal.unscaledValue)."""
    sign, digits, _ = value.as_tuple()
    return int(Decimal((sign, digits, 0)))


def scale(value: Decimal) -> int:
    """Digits after the decimal point; negative for zeros before it (BigDecimal.scale). The value must be finite."""
    exponent = value.as_tuple().exponent
    if not isinstance(exponent, int):
        raise TypeError(f"{value} is not a number")
    return -exponent


def from_unscaled(number: int, digits_behind: int) -> Decimal:
    """The exact decimal with these digits, independent of the context's precision."""
    sign, digits, _ = Decimal(number).as_tuple()
    return Decimal((sign, digits, -digits_behind))


def twos_complement(number: int) -> bytes:
    """Big-endian with the fewest bytes possible, at least one (BigInteger.toByteArray)."""
    return number.to_bytes((number if number >= 0 else ~number).bit_length() // 8 + 1, "big", signed=True)
