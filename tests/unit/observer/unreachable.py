"""The properties of a flow whose clusters do not respond."""

from __future__ import annotations

from typing import Final

from mm2.mirror.common.clients import SOURCE_ALIAS_KEY, TARGET_ALIAS_KEY

PROPS: Final = {
    "name": "MirrorSourceConnector",
    SOURCE_ALIAS_KEY: "A",
    TARGET_ALIAS_KEY: "B",
    "source.cluster.bootstrap.servers": "127.0.0.1:1",
    "target.cluster.bootstrap.servers": "127.0.0.1:1",
}
