"""Whether the ledger of a flow is the one that its leader has read before."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from mm2.copy.progress.ledger import Ledger, entry_record, note_record
from mm2.copy.progress.session import CopyId, LedgerEntry, Mark
from mm2.kafka.errors import BrokerFailure, KafkaFailure, TimeoutFailure
from mm2.kafka.records.record import Record
from mm2.kafka.structs import OffsetInfo, TopicInfo
from mm2.mirror.common.clients import MirrorClients
from mm2.mirror.notes.ledgers import ACL_NOTE, PROVENANCE_NOTE, Ledgers
from mm2.mirror.notes.promotions import PROMOTED_NOTE, Promotion


class Target:
    """A cluster with a ledger of this topic id; None: there is none."""

    def __init__(self) -> None:
        self.topic_id: str | None = "one"

    def describe_topics(self, names: list[str]) -> dict[str, TopicInfo | KafkaFailure]:
        if self.topic_id is None:
            return {name: BrokerFailure.of(3) for name in names}
        return {name: TopicInfo(name, self.topic_id, internal=False, partitions={}) for name in names}


def test_a_ledger_that_was_recreated_is_noticed_whatever_happens_between(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[Any] = []

    def read(*_: object) -> tuple[Ledger, dict[int, int]]:
        if answers:
            raise answers.pop()
        return Ledger(), {}

    monkeypatch.setattr(Ledgers, "_read", read)
    target = Target()
    ledgers = Ledgers(MirrorClients({"source.cluster.alias": "A"}), cast(Any, target))
    assert not ledgers.was_recreated(), "it was not read before"
    ledgers.own()
    assert (ledgers.was_recreated(), ledgers.losses) == (False, 0)
    target.topic_id = None
    assert not ledgers.was_recreated(), "it does not exist yet"
    with pytest.raises(BrokerFailure):
        ledgers.own()
    target.topic_id = "two"
    assert ledgers.was_recreated()
    answers.append(TimeoutFailure("not read to its end"))
    with pytest.raises(TimeoutFailure):
        ledgers.own()
    ledgers.own()
    assert (ledgers.was_recreated(), ledgers.losses) == (False, 1)
    target.topic_id = ""
    ledgers.own()
    assert (ledgers.was_recreated(), ledgers.losses) == (False, 1), "brokers before 2.8 have no topic ids"


_OF_B = LedgerEntry("t", 0, "t", Mark(5, 5, 5), source_id="id on B")
_PROMOTED = Promotion("t", "t", "failover", 1)


@pytest.mark.parametrize(
    ("record", "is_proven"),
    [
        (entry_record(_OF_B), True),
        (entry_record(_OF_B.replace(source_id="", copy_id=CopyId("", "c", "cluster B"))), True),
        (note_record(PROVENANCE_NOTE, ["u"], {"paths": [[["cluster C", 1], ["cluster B", 2]]]}), True),
        (note_record(ACL_NOTE, ["x"], {"cluster": "cluster B"}), True),
        (entry_record(_OF_B.replace(source_id="guessed", copy_id=CopyId("", "c", "guessed"))), False),
        (entry_record(_OF_B.replace(source_id="")), False),
        (note_record(PROVENANCE_NOTE, ["u"], {"paths": [[["guessed", 1]]]}), False),
        (note_record(PROVENANCE_NOTE, ["u"], {"paths": 7}), False),
        (note_record(ACL_NOTE, ["x"], {"cluster": ""}), False),
    ],
)
def test_a_ledger_on_the_source_is_proven_by_an_id_of_the_target(
    monkeypatch: pytest.MonkeyPatch, record: Record, *, is_proven: bool
) -> None:
    """Any client of the source may create one; only a flow that reads from the target knows its ids."""
    ledger = Ledger()
    for one in (record, _PROMOTED.record()):
        ledger.apply(one.key, one.value)
    monkeypatch.setattr(Ledgers, "read", lambda *_: ledger)
    source = SimpleNamespace(
        list_topics=lambda: ["orders", "mm2-ledger.X.internal"],
        describe_topics=lambda names: {name: TopicInfo(name, "id", internal=False, partitions={}) for name in names},
        list_offsets=lambda partitions: dict.fromkeys(partitions, OffsetInfo(2, -1, -1)),
    )
    target = SimpleNamespace(
        describe_cluster=lambda: SimpleNamespace(cluster_id="cluster B"),
        describe_topics=lambda names: {
            name: TopicInfo(name, "id on B", internal=False, partitions={}) for name in names
        },
    )
    ledgers = Ledgers(MirrorClients({"source.cluster.alias": "A"}), cast(Any, target))
    for _ in range(2):  # the second time what was read before
        assert len(list(ledgers.notes_of_source(PROMOTED_NOTE, cast(Any, source)))) == 1
        assert len(list(ledgers.notes_of_source(PROMOTED_NOTE, cast(Any, source), proven=True))) == is_proven
