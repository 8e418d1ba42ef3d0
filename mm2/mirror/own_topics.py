"""Topics on the target that Java's MirrorMaker does not have: the ledger and the dead-letter topic.

Their default names begin with ``mm2`` and end in ``.internal``, so Java treats them as its internal topics and does not
replicate them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from mm2.config.mirror_keys import MIRROR_SOURCE_CONFIG
from mm2.copy.ledger import LEDGER_CONFIGS, LEDGER_NAMES
from mm2.kafka.structs import NewTopic
from mm2.mirror.clients import SOURCE_ALIAS_KEY, MirrorClients, Side
from mm2.mirror.internal_topics import KeptTopic

LEDGER_FACTOR_KEY: Final = "ledger.topic.replication.factor"
DEAD_LETTER_KEY: Final = "dead.letter.topic"
DEAD_LETTER_FACTOR_KEY: Final = "dead.letter.topic.replication.factor"

_DEAD_LETTER_CONFIGS: Final = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    # A record that is too large for its remote topic must fit here. By default brokers accept no larger request than
    # this.
    "max.message.bytes": str(100 << 20),
}
_DEAD_LETTERS: Final = re.compile(r"mm2-dead-letters\..+\.internal")


def dead_letter_topic(props: Mapping[str, str]) -> str:
    """The topic for records that the flow with these connector properties cannot copy."""
    return props.get(DEAD_LETTER_KEY, "").strip() or f"mm2-dead-letters.{props[SOURCE_ALIAS_KEY]}.internal"


def is_own_topic(topic: str) -> bool:
    """Whether this is the default name of a ledger or a dead-letter topic, of any flow.

    Like the names of Connect's topics, these keep their dots whatever the separator is. A policy with another separator
    does not recognize them as internal.
    """
    return bool(LEDGER_NAMES.fullmatch(topic) or _DEAD_LETTERS.fullmatch(topic))


def kept_ledger(clients: MirrorClients) -> KeptTopic:
    """The ledger topic of a source connector, to be created. Raises ConfigException.

    A properties file written for Java does not set the replication factors of the ledger and the dead-letter topic, and
    its cluster may have a single broker: then the broker's default is used.
    """
    new = NewTopic(clients.ledger_topic, 1, configs=LEDGER_CONFIGS)
    return KeptTopic.of(Side.TARGET, new, clients.props, MIRROR_SOURCE_CONFIG, LEDGER_FACTOR_KEY)


def kept_dead_letters(props: Mapping[str, str]) -> KeptTopic:
    """The dead-letter topic of the flow, to be created. Raises ConfigException."""
    new = NewTopic(dead_letter_topic(props), 1, configs=_DEAD_LETTER_CONFIGS)
    return KeptTopic.of(Side.TARGET, new, props, MIRROR_SOURCE_CONFIG, DEAD_LETTER_FACTOR_KEY)
