"""The predicates that ship with Kafka 4.3.0 (org.apache.kafka.connect.transforms.predicates)."""

from mm2.connect.predicates.predicates import HasHeaderKey, RecordIsTombstone, TopicNameMatches

__all__ = ["HasHeaderKey", "RecordIsTombstone", "TopicNameMatches"]
