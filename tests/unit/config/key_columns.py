"""The keys of a ConfigDef in the format of the tables written by Kafka: one row per key."""

from __future__ import annotations

import csv
from pathlib import Path

from mm2.config.configdef import ConfigKey
from mm2.config.definitions.config_infos import shown


def rows(file: Path) -> list[dict[str, str]]:
    with file.open(encoding="utf-8", newline="") as opened:
        return list(csv.DictReader(opened, delimiter="\t", quoting=csv.QUOTE_NONE))


def columns(key: ConfigKey) -> dict[str, str]:
    """All columns of a key except its documentation and its recommender."""
    default = shown(key.default, key.type)
    return {
        "key": key.name,
        "type": key.type.value,
        "default": "<NODEF>" if key.required else "<null>" if default is None else default,
        "importance": key.importance.value,
        "group": key.group or "<null>",
        "order": str(key.order),
        "width": key.width.value,
        "display_name": key.display_name,
        "dependents": ",".join(key.dependents),
    }
