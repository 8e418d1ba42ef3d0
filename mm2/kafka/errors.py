"""Failures of connections to brokers and of requests.

    KafkaFailure
    ├── ConnectFailure            no usable connection
    │   ├── DnsFailure            the host name has no address
    │   ├── RefusedFailure        connection refused, or no route to the host
    │   ├── TlsFailure            certificate, protocol version, or a plaintext peer
    │   │   └── TlsInterrupted    the connection ended during the handshake
    │   ├── TimeoutFailure        no answer before the deadline
    │   └── DisconnectedFailure   the peer (or this client) closed the connection
    ├── AuthenticationFailure     the broker rejected the credentials
    ├── BrokerFailure             an answer with an error code
    │   ├── UnsupportedVersion    no version of the request that client and broker both support
    │   └── ProducerFenced        a newer producer uses the transactional id, or the transaction timed out
    └── CorruptBatch              record bytes that contradict each other
        ├── BatchOverLimit        a record batch that needs more memory than ``decompression.max.bytes``
        └── UnreadableAnswer      an answer that no broker sends

Every message is one sentence that names the address or the cluster. `retriable` is true if the same call may succeed
later without any change by an operator, `is_final` if it can never succeed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Final, Literal, Self, TypeVar

from mm2.kafka.error_codes import RETRIABLE, STALE_METADATA, ErrorCode

_Answer = TypeVar("_Answer")
_Item = TypeVar("_Item")
#: An operation of Kafka's ACLs.
Right = Literal["READ", "WRITE", "CREATE", "DELETE", "ALTER", "DESCRIBE", "DESCRIBE_CONFIGS", "ALTER_CONFIGS"]
#: Of a broker's text or name in a message, which is logged and stored. It may send megabytes.
_SHOWN_CHARACTERS: Final = 1_000
_DENIED: Final = frozenset(
    {
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
)


class KafkaFailure(Exception):
    """Base of all failures of this package."""

    retriable: bool = False

    @property
    def is_final(self) -> bool:
        """Not retriable: the broker rejected the request.

        False for failures of TLS and of authentication: an operator can fix a certificate or a password, and files are
        read again when they change. A long-running caller must not treat such a failure as the answer to its request.
        """
        return not self.retriable


class ConnectFailure(KafkaFailure):
    """There is no usable connection to a broker."""

    retriable = True

    @property
    def is_final(self) -> bool:
        return False


class DnsFailure(ConnectFailure):
    """The host name could not be resolved."""


class RefusedFailure(ConnectFailure):
    """Nothing accepts connections at the address, or the network has no route to it."""


class TlsFailure(ConnectFailure):
    """The TLS handshake failed, only one side uses TLS, or the client's own stores cannot be read at the moment."""

    retriable = False


class TlsInterrupted(TlsFailure):
    """The connection ended during the TLS handshake: a broker that is being stopped, or a peer without TLS.

    Retriable, as in Java's SslTransportLayer: nothing shows that the peer rejected the handshake.
    """

    retriable = True


class TimeoutFailure(ConnectFailure):
    """The deadline passed before the connection was open or the answer had arrived."""


class DisconnectedFailure(ConnectFailure):
    """The connection ended before the answer was complete."""


class AuthenticationFailure(KafkaFailure):
    """The broker rejected the credentials or the SASL mechanism, or no credentials could be obtained."""

    @property
    def is_final(self) -> bool:
        return False


class BrokerFailure(KafkaFailure):
    """An answer with an error code.

    Attributes: `code` (number), `name` (Java's name of it), `message` (the whole sentence), `retriable`.
    """

    DESCRIPTIONS: ClassVar[dict[int, str]] = {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "there is no such topic or partition, or it may not be described",
        ErrorCode.TOPIC_AUTHORIZATION_FAILED: "the principal has no right to this topic",
        ErrorCode.GROUP_AUTHORIZATION_FAILED: "the principal has no right to this group",
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "the principal has no right to do this on the cluster",
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "the principal has no right to this transactional id",
        ErrorCode.TOPIC_ALREADY_EXISTS: "the topic exists already",
        ErrorCode.MESSAGE_TOO_LARGE: "a batch is larger than the topic allows",
        ErrorCode.SECURITY_DISABLED: "the cluster has no authorizer, so it has no ACLs",
        ErrorCode.GROUP_ID_NOT_FOUND: "there is no such group",
        ErrorCode.NON_EMPTY_GROUP: "the group has members",
        ErrorCode.NOT_COORDINATOR: "another broker is the coordinator now",
        ErrorCode.COORDINATOR_NOT_AVAILABLE: "the coordinator is not available yet",
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: "the coordinator is still loading its state",
        ErrorCode.NOT_LEADER_OR_FOLLOWER: "another broker is the leader of the partition now",
        ErrorCode.LEADER_NOT_AVAILABLE: "the partition has no leader at the moment",
        ErrorCode.PRODUCER_FENCED: "a newer producer uses the same transactional id",
        ErrorCode.INVALID_PRODUCER_EPOCH: "a newer producer uses the same id, or a transaction took too long",
        ErrorCode.INVALID_TXN_STATE: "the transaction no longer exists: it exceeded its timeout, or a newer producer has ended it",
        ErrorCode.UNKNOWN_SERVER_ERROR: "internal error of the broker, see its log",
    }

    def __init__(self, code: int, name: str, message: str, retriable: bool) -> None:
        super().__init__(int(code), name, message, retriable)
        self.code = int(code)
        self.name = name
        self.message = message
        self.retriable = retriable

    @classmethod
    def of(cls, code: int, message: str | None = None, *, subject: str = "", needed: Right | None = None) -> Self:
        """Create the failure for an error code other than 0.

        `message` is the broker's message; without one the text of `DESCRIPTIONS` is used. `subject` names the resource,
        for example "topic t of cluster A". `needed` is the right that the request requires: brokers do not name it when they
        deny a request.
        """
        try:
            name = ErrorCode(code).name
        except ValueError:
            name = f"ERROR_{code}"
        text = in_message(message or "") or cls.DESCRIPTIONS.get(code) or name.replace("_", " ").lower()
        subject = in_message(subject)
        sentence = (f"{subject}: {name}, {text}" if subject else f"{name}, {text}").rstrip(". ")
        if needed is not None and code in _DENIED:
            sentence += f"; the right {needed} is missing"
        return cls(code, name, f"{sentence}.", code in RETRIABLE)

    @property
    def stale_metadata(self) -> bool:
        """True when metadata must be refreshed before the next attempt."""
        return self.code in STALE_METADATA

    @property
    def is_denied(self) -> bool:
        """Whether a right of the principal is missing."""
        return self.code in _DENIED

    def __str__(self) -> str:
        return self.message


class UnsupportedVersion(BrokerFailure):
    """The broker does not support the request, or no version of it that this client supports."""


class ProducerFenced(BrokerFailure):
    """The producer can no longer write with its transactional id.

    A newer producer uses the id, or the transaction exceeded its timeout and was aborted. Final: only a new
    InitProducerId helps.
    """


class CorruptBatch(KafkaFailure):
    """A frame or a record batch whose bytes contradict each other."""


class BatchOverLimit(CorruptBatch):
    """A record batch that needs more memory than ``decompression.max.bytes`` allows. It may be intact.

    A few kilobytes can decompress to gigabytes: zstd expands by up to 32,768, gzip by 1,032.
    """


class UnreadableAnswer(CorruptBatch):
    """An answer that no broker sends: another program, a damaged network, or a malicious broker. It answers no question."""

    @property
    def is_final(self) -> bool:
        return False


def in_message(text: str) -> str:
    """What a broker has sent, shortened for a message."""
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}… ({len(text):,} characters)"


def value_of(answer: _Answer | KafkaFailure) -> _Answer:
    """The answer for one item of an admin call. Raises it if it is a failure."""
    if isinstance(answer, KafkaFailure):
        raise answer
    return answer


def failures_in(answers: Mapping[_Item, object]) -> dict[_Item, KafkaFailure]:
    """The items whose answers are failures."""
    return {item: answer for item, answer in answers.items() if isinstance(answer, KafkaFailure)}


def check_answered(answers: Mapping[_Item, object]) -> dict[_Item, KafkaFailure]:
    """The failed items. Raises a failure if all items have failed, one of them without an answer of a broker."""
    failures = failures_in(answers)
    silent = (one for one in failures.values() if not isinstance(one, BrokerFailure))
    if len(failures) == len(answers) and (first := next(silent, None)) is not None:
        raise first
    return failures


def is_unavailable(failure: KafkaFailure) -> bool:
    """Whether a check at the start of a process may succeed later without an operator.

    False for an interrupted TLS handshake: a wrong port or security.protocol is likelier than a broker that is being stopped.
    """
    return isinstance(failure, ConnectFailure) and failure.retriable and not isinstance(failure, TlsFailure)


def is_answer(failure: KafkaFailure) -> bool:
    """Whether a broker has answered so: with an error code, or with what cannot be read. No operator of this process has caused it."""
    return isinstance(failure, CorruptBatch) or (isinstance(failure, BrokerFailure) and not failure.is_denied)
