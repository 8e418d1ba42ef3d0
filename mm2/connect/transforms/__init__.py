"""The transformations that ship with Kafka 4.3.0 (org.apache.kafka.connect.transforms).

Java's Cast$Key and Cast$Value are CastKey and CastValue here; the same applies to all transformations of a part of the
record.
"""

from mm2.connect.transforms.cast import CastKey, CastValue
from mm2.connect.transforms.extract_field import ExtractFieldKey, ExtractFieldValue
from mm2.connect.transforms.filter import Filter
from mm2.connect.transforms.flatten import FlattenKey, FlattenValue
from mm2.connect.transforms.headers import DropHeaders, HeaderFromKey, HeaderFromValue, InsertHeader
from mm2.connect.transforms.hoist_field import HoistFieldKey, HoistFieldValue
from mm2.connect.transforms.insert_field import InsertFieldKey, InsertFieldValue
from mm2.connect.transforms.mask_field import MaskFieldKey, MaskFieldValue
from mm2.connect.transforms.replace_field import ReplaceFieldKey, ReplaceFieldValue
from mm2.connect.transforms.routers import RegexRouter, TimestampRouter
from mm2.connect.transforms.set_schema_metadata import SetSchemaMetadataKey, SetSchemaMetadataValue
from mm2.connect.transforms.timestamp_converter import TimestampConverterKey, TimestampConverterValue
from mm2.connect.transforms.value_to_key import ValueToKey

__all__ = [
    "CastKey",
    "CastValue",
    "DropHeaders",
    "ExtractFieldKey",
    "ExtractFieldValue",
    "Filter",
    "FlattenKey",
    "FlattenValue",
    "HeaderFromKey",
    "HeaderFromValue",
    "HoistFieldKey",
    "HoistFieldValue",
    "InsertFieldKey",
    "InsertFieldValue",
    "InsertHeader",
    "MaskFieldKey",
    "MaskFieldValue",
    "RegexRouter",
    "ReplaceFieldKey",
    "ReplaceFieldValue",
    "SetSchemaMetadataKey",
    "SetSchemaMetadataValue",
    "TimestampConverterKey",
    "TimestampConverterValue",
    "TimestampRouter",
    "ValueToKey",
]
