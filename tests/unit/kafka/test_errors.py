import pickle
import uuid

import pytest

from mm2.kafka.error_codes import RETRIABLE, ErrorCode
from mm2.kafka.errors import (
    AuthenticationFailure,
    BrokerFailure,
    ConnectFailure,
    CorruptBatch,
    KafkaFailure,
    RefusedFailure,
    TlsFailure,
    TlsInterrupted,
    UnsupportedVersion,
    is_unavailable,
)
from mm2.kafka.structs import topic_id_bytes, topic_id_text


def test_broker_failure_reads_as_one_sentence() -> None:
    failure = BrokerFailure.of(3, subject="Topic t of cluster A")
    assert str(failure).startswith("Topic t of cluster A: UNKNOWN_TOPIC_OR_PARTITION, ")
    assert str(failure).endswith(".")
    assert str(BrokerFailure.of(36, "Topic 't' already exists.")) == "TOPIC_ALREADY_EXISTS, Topic 't' already exists."
    assert failure.retriable
    assert failure.stale_metadata


def test_code_of_a_newer_broker_has_a_name_of_its_own() -> None:
    failure = BrokerFailure.of(999)
    assert (failure.code, failure.name, failure.retriable) == (999, "ERROR_999", False)


def test_megabytes_of_a_broker_do_not_get_into_a_message() -> None:
    failure = BrokerFailure.of(
        ErrorCode.TOPIC_AUTHORIZATION_FAILED, "x" * 2_000_000, subject=f"Topic {'t' * 1_000_000}", needed="READ"
    )
    assert len(str(failure)) < 3_000
    assert str(failure).endswith("x… (2,000,000 characters); the right READ is missing.")


def test_retriable_like_java() -> None:
    assert ErrorCode.NOT_COORDINATOR in RETRIABLE
    assert ErrorCode.CONCURRENT_TRANSACTIONS in RETRIABLE
    assert ErrorCode.TOPIC_AUTHORIZATION_FAILED not in RETRIABLE
    assert ConnectFailure("x").retriable
    assert not TlsFailure("x").retriable
    assert TlsInterrupted("x").retriable
    assert not AuthenticationFailure("x").retriable


def test_rejections_by_a_broker_are_final_and_connection_errors_are_not() -> None:
    assert BrokerFailure.of(ErrorCode.TOPIC_AUTHORIZATION_FAILED).is_final
    assert CorruptBatch("x").is_final
    for passing in (BrokerFailure.of(ErrorCode.NOT_COORDINATOR), TlsFailure("x"), AuthenticationFailure("x")):
        assert not passing.is_final


def test_a_start_waits_only_for_a_cluster_that_does_not_answer() -> None:
    assert is_unavailable(RefusedFailure("x"))
    for failure in (TlsInterrupted("x"), TlsFailure("x"), AuthenticationFailure("x"), BrokerFailure.of(16)):
        assert not is_unavailable(failure)


@pytest.mark.parametrize("failure", [BrokerFailure.of(16), UnsupportedVersion.of(35, "no"), AuthenticationFailure("x")])
def test_failures_survive_pickling(failure: KafkaFailure) -> None:
    copy = pickle.loads(pickle.dumps(failure))  # noqa: S301 - our own bytes
    assert type(copy) is type(failure)
    assert str(copy) == str(failure)


def test_topic_id_text_and_bytes_are_inverse() -> None:
    topic_id = uuid.UUID("a53b6d99-ad1f-4886-8e94-b32534f13c22")
    assert topic_id_bytes(topic_id_text(topic_id)) == topic_id.bytes
    assert len(topic_id_text(topic_id)) == 22
    assert topic_id_text(uuid.UUID(int=0)) == ""
    assert topic_id_bytes("") == bytes(16)


def test_a_denial_names_the_right_that_is_missing() -> None:
    denied = BrokerFailure.of(ErrorCode.TOPIC_AUTHORIZATION_FAILED, subject="Topic t of cluster A", needed="READ")
    assert str(denied).startswith("Topic t of cluster A: TOPIC_AUTHORIZATION_FAILED, ")
    assert str(denied).endswith("; the right READ is missing.")
    other = BrokerFailure.of(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, subject="Topic t of cluster A", needed="READ")
    assert "READ" not in str(other)
