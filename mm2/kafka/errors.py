"""What can go wrong between us and a broker.

    KafkaFailure
    ├── ConnectFailure            no usable connection
    │   ├── DnsFailure            the name has no address
    │   ├── RefusedFailure        nobody listens, or no way there
    │   ├── TlsFailure            certificate, protocol or plaintext on the other side
    │   ├── TimeoutFailure        no answer before the deadline
    │   └── DisconnectedFailure   the peer (or our own close) ended the connection
    ├── AuthenticationFailure     the broker knows us not
    ├── BrokerFailure             an answer with an error code
    │   ├── UnsupportedVersion    no version of a request that both sides speak
    │   └── ProducerFenced        a newer producer has our transactional id, or our transaction took too long
    └── CorruptBatch              record bytes that do not add up

Every message is one sentence that names the address or the cluster. `retriable` says whether the same call may succeed later
without anybody changing anything, `is_final` whether it never will.
"""

from __future__ import annotations

from typing import ClassVar, Self

from mm2.kafka.error_codes import RETRIABLE, STALE_METADATA, ErrorCode


class KafkaFailure(Exception):
    """Base of all failures of this package."""

    retriable: bool = False

    @property
    def is_final(self) -> bool:
        """A broker has heard us and will say the same again.

        Not so when a certificate or a password keeps us from being heard: somebody will mend it, and what is read from files
        is read again, so whoever runs for years must draw no conclusions from it meanwhile.
        """
        return not self.retriable


class ConnectFailure(KafkaFailure):
    """There is no usable connection to a broker."""

    retriable = True

    @property
    def is_final(self) -> bool:
        return False


class DnsFailure(ConnectFailure):
    """A host name could not be resolved."""


class RefusedFailure(ConnectFailure):
    """Nothing accepts connections at the address, or the network has no route to it."""


class TlsFailure(ConnectFailure):
    """The TLS handshake failed, only one side of the connection speaks TLS, or our own stores cannot be used at the moment."""

    retriable = False


class TimeoutFailure(ConnectFailure):
    """The deadline passed before the connection or the answer was there."""


class DisconnectedFailure(ConnectFailure):
    """The connection ended before the answer was complete."""


class AuthenticationFailure(KafkaFailure):
    """The broker rejected the credentials or the SASL mechanism, or there are none to be had."""

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
        ErrorCode.INVALID_TXN_STATE: "there is no such transaction any more: it took too long, or a newer producer has ended it",
        ErrorCode.UNKNOWN_SERVER_ERROR: "the broker met an error of its own, see its log",
    }

    def __init__(self, code: int, name: str, message: str, retriable: bool) -> None:
        super().__init__(int(code), name, message, retriable)
        self.code = int(code)
        self.name = name
        self.message = message
        self.retriable = retriable

    @classmethod
    def of(cls, code: int, message: str | None = None, *, subject: str = "") -> Self:
        """Failure for an error code other than 0.

        `message` is what the broker said (None: our own words), `subject` names what it is about ("topic t of cluster A").
        """
        try:
            name = ErrorCode(code).name
        except ValueError:
            name = f"ERROR_{code}"
        text = message or cls.DESCRIPTIONS.get(code) or name.replace("_", " ").lower()
        sentence = f"{subject}: {name}, {text}" if subject else f"{name}, {text}"
        return cls(code, name, sentence.rstrip(". ") + ".", code in RETRIABLE)

    @property
    def stale_metadata(self) -> bool:
        """True when metadata must be asked for again before the next try."""
        return self.code in STALE_METADATA

    def __str__(self) -> str:
        return self.message


class UnsupportedVersion(BrokerFailure):
    """The broker does not know a request, or not in any version that we know."""


class ProducerFenced(BrokerFailure):
    """A producer can write no more under its transactional id: a newer one has it, or its transaction took longer than its
    timeout and was aborted. Final; only a new InitProducerId helps."""


class CorruptBatch(KafkaFailure):
    """A frame or a record batch whose bytes contradict each other."""
