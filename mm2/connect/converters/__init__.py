"""The converters that ship with Kafka 4.3.0."""

from mm2.connect.converters.byte_array import ByteArrayConverter
from mm2.connect.converters.fixed_width import (
    BooleanConverter,
    DoubleConverter,
    FloatConverter,
    IntegerConverter,
    LongConverter,
    ShortConverter,
)
from mm2.connect.converters.json import JsonConverter
from mm2.connect.converters.simple_header import SimpleHeaderConverter
from mm2.connect.converters.string import StringConverter

__all__ = [
    "BooleanConverter",
    "ByteArrayConverter",
    "DoubleConverter",
    "FloatConverter",
    "IntegerConverter",
    "JsonConverter",
    "LongConverter",
    "ShortConverter",
    "SimpleHeaderConverter",
    "StringConverter",
]
