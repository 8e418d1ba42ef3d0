"""The transformations that ship with Kafka 4.3.0 (org.apache.kafka.connect.transforms).

Java's Cast$Key and Cast$Value are CastKey and CastValue here; the same applies to all transformations of a part of the
record.
"""

from mm2.connect.transforms.cast import CastKey, CastValue
from mm2.connect.transforms.fields import (
    ExtractFieldKey,
    ExtractFieldValue,
    FlattenKey,
    FlattenValue,
    HoistFieldKey,
    HoistFieldValue,
    InsertFieldKey,
    InsertFieldValue,
    ReplaceFieldKey,
    ReplaceFieldValue,
    SetSchemaMetadataKey,
    SetSchemaMetadataValue,
    ValueToKey,
)
from mm2.connect.transforms.headers import DropHeaders, HeaderFromKey, HeaderFromValue, InsertHeader
from mm2.connect.transforms.mask_field import MaskFieldKey, MaskFieldValue
from mm2.connect.transforms.routers import Filter, RegexRouter, TimestampRouter
from mm2.connect.transforms.timestamp_converter import TimestampConverterKey, TimestampConverterValue

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
