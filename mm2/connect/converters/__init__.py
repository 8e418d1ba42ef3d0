"""The converters that ship with Kafka 4.3.0 (spec connect G.4), one per module."""

from mm2.connect.api import Converter, HeaderConverter
from mm2.connect.converters.byte_array import ByteArrayConverter
from mm2.connect.stores.offset_json import OffsetJson

__all__ = ["ByteArrayConverter", "Converter", "HeaderConverter", "OffsetJson"]
