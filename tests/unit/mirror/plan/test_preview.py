"""What a preview reports of the topics that producers need on the target after a failover."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from mm2.config.mirrormaker import SourceAndTarget
from mm2.kafka.errors import BrokerFailure, KafkaFailure
from mm2.kafka.structs import TopicInfo
from mm2.mirror.common.clients import Side
from mm2.mirror.plan.preview import _Previewer


def test_topics_that_the_flow_may_not_describe_are_not_called_missing() -> None:
    """A flow needs rights on its remote topics only, so a list of topics does not contain those of producers."""
    answers: dict[str, TopicInfo | KafkaFailure] = {
        "there": TopicInfo("there", "", False, {}),
        "hidden": BrokerFailure.of(29, subject="hidden"),
        "missing": BrokerFailure.of(3, subject="missing"),
    }
    previewer: Any = object.__new__(_Previewer)
    previewer._pair, previewer._notes = SourceAndTarget("A", "B"), []
    previewer._selection = SimpleNamespace(
        names_show_origin=True, policy=SimpleNamespace(is_heartbeats_topic=lambda _: False)
    )
    admin = SimpleNamespace(describe_topics=lambda names: {name: answers[name] for name in names}, list_topics=set)
    previewer._admins = {Side.TARGET: admin}
    previewer._topics_of_producers(answers)
    (note,) = previewer._notes
    assert "do not exist there: missing." in note
