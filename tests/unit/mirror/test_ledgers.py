"""Whether the ledger of a flow is the one that its leader has read before."""

from __future__ import annotations

from typing import Any, cast

import pytest

from mm2.copy.ledger import Ledger
from mm2.kafka.errors import BrokerFailure, KafkaFailure, TimeoutFailure
from mm2.kafka.structs import TopicInfo
from mm2.mirror.clients import MirrorClients
from mm2.mirror.ledgers import Ledgers


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
