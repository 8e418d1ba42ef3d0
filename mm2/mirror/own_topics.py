"""Topics on the target that Java's MirrorMaker does not have: the ledger and the dead letters (DESIGN §6).

Their default names begin with ``mm2`` and end in ``.internal``, so Java takes them for its own and replicates neither.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from mm2.config.mirror_keys import MIRROR_SOURCE_CONFIG
from mm2.copy.ledger import LEDGER_CONFIGS, ledger_topic
from mm2.kafka.structs import NewTopic
from mm2.mirror.clients import SOURCE_ALIAS_KEY, Side
from mm2.mirror.internal_topics import KeptTopic

LEDGER_FACTOR_KEY: Final = "ledger.topic.replication.factor"
DEAD_LETTER_KEY: Final = "dead.letter.topic"
DEAD_LETTER_FACTOR_KEY: Final = "dead.letter.topic.replication.factor"

_DEAD_LETTER_CONFIGS: Final = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    # What is too large for its remote topic has to fit in here; more than this no broker's socket takes by default.
    "max.message.bytes": str(100 << 20),
}
_OWN: Final = re.compile(r"mm2-(ledger|dead-letters)\..+\.internal")


def dead_letter_topic(props: Mapping[str, str]) -> str:
    """Where the flow with these connector properties puts records that it cannot copy."""
    return props.get(DEAD_LETTER_KEY, "").strip() or f"mm2-dead-letters.{props[SOURCE_ALIAS_KEY]}.internal"


def is_own_topic(topic: str) -> bool:
    """Whether this is a ledger or a dead-letter topic by its default name, of whatever flow.

    Like those of Connect's topics these names keep their dots whatever the separator is, so a policy with another
    separator does not know them for internal.
    """
    return _OWN.fullmatch(topic) is not None


def kept_ledger(props: Mapping[str, str]) -> KeptTopic:
    """The ledger of the flow, to be created. A file that was written for Java does not have the replication factors of these
    two, and its cluster may be a single broker: then the broker's default will do. Raises ConfigException."""
    new = NewTopic(ledger_topic(props[SOURCE_ALIAS_KEY]), 1, configs=LEDGER_CONFIGS)
    return KeptTopic.of(Side.TARGET, new, props, MIRROR_SOURCE_CONFIG, LEDGER_FACTOR_KEY)


def kept_dead_letters(props: Mapping[str, str]) -> KeptTopic:
    """The dead-letter topic of the flow, to be created. Raises ConfigException."""
    new = NewTopic(dead_letter_topic(props), 1, configs=_DEAD_LETTER_CONFIGS)
    return KeptTopic.of(Side.TARGET, new, props, MIRROR_SOURCE_CONFIG, DEAD_LETTER_FACTOR_KEY)
