"""What changes the records of a flow between its clusters: transformations, and converters other than ByteArrayConverter.

Java's runtime applies both to the records of MirrorSourceTask, as to those of every source task. Here the executors of the
copy engine do (`mm2.mirror.source.record_chain`), and only where something is configured. RegexRouter changes no records, only
the name of the remote topic (`mm2.mirror.topics.routing`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Final

from mm2.config.definitions.values import split_list
from mm2.config.files.provider_values import known_within
from mm2.config.mirrormaker import BYTE_ARRAY_CONVERTER
from mm2.copy.spec import ChangesSpec
from mm2.mirror.topics.routing import TRANSFORMS_KEY, router_aliases

CONVERTER_KEYS: Final = ("key.converter", "value.converter", "header.converter")
#: All names of the converter that passes bytes on.
BYTE_ARRAY_CONVERTERS: Final = frozenset(
    {
        BYTE_ARRAY_CONVERTER,
        "ByteArrayConverter",
        "ByteArray",
        "mm2.connect.converters.ByteArrayConverter",
    }
)
_FACTORY: Final = "mm2.mirror.source.record_chain:RecordChain"
_CHAIN_PREFIXES: Final = ("transforms.", "predicates.")
_CHAIN_KEYS: Final = (TRANSFORMS_KEY, "predicates")
_WORKER_KEYS: Final = ("plugin.path", "plugin.discovery")
_ERRORS: Final = "errors."
_ALIAS: Final = "source.cluster.alias"
_POLICY: Final = "replication.policy."
_DIGEST_DIGITS: Final = 16


def changes_spec(
    props: Mapping[str, str], worker: Mapping[str, str], *, connector: str, task: int
) -> ChangesSpec | None:
    """What changes the records of a task; None: they are copied as bytes.

    ``worker`` are the worker's own settings: converters of connectors that name none, and where plugins are. Raises
    ConfigException or ConnectError for settings that cannot be used.
    """
    changing, converters = changing_keys(props, worker), _converters(props, worker)
    has_transforms = bool(split_list(props.get(TRANSFORMS_KEY) or ""))
    has_versions = any(f"{key}.plugin.version" in converters for key in CONVERTER_KEYS)
    if not (changing or has_transforms or has_versions):
        return None
    chain = {key: value for key, value in props.items() if key in _CHAIN_KEYS or key.startswith(_CHAIN_PREFIXES)}
    settings = {key: worker[key] for key in _WORKER_KEYS if key in worker}
    settings |= {key: value for key, value in props.items() if key in _WORKER_KEYS or key.startswith(_ERRORS)}
    settings |= {
        "name": connector,
        "task.id": str(task),
        _ALIAS: props.get(_ALIAS, ""),
        **converters,
        **(chain if has_transforms else {}),
    }
    # Imported late: a flow without changes needs none of it.
    from mm2.mirror.source.record_chain import HIDDEN_KEY, RecordChain  # noqa: PLC0415

    if hidden := known_within(settings.values()):
        settings[HIDDEN_KEY] = json.dumps(hidden)
    with RecordChain(settings) as built:
        if not changing:
            return None  # routers and the versions of converters were to be checked
        deciding = [*built.versions, settings.get("errors.tolerance", "none").lower(), chain, converters]
        if router_aliases(props):  # records enter the chain with the policy's name, also those of former topics
            deciding.append({key: value for key, value in props.items() if key.startswith(_POLICY)})
        digest = hashlib.sha256(json.dumps(deciding, sort_keys=True).encode()).hexdigest()
        return ChangesSpec(_FACTORY, settings, digest[:_DIGEST_DIGITS], built.not_repeatable)


def changing_keys(props: Mapping[str, str], worker: Mapping[str, str]) -> list[str]:
    """The keys of a connector or its worker that change the records of the flow; their values are not checked."""
    converters = _converters(props, worker)
    aliases = split_list(props.get(TRANSFORMS_KEY) or "")
    keys = [TRANSFORMS_KEY] if set(aliases) - set(router_aliases(props)) else []
    return keys + [key for key in CONVERTER_KEYS if converters[key] not in BYTE_ARRAY_CONVERTERS]


def check_changes(props: Mapping[str, str], worker: Mapping[str, str]) -> None:
    """Raise ConfigException or ConnectError for settings with which no task could start."""
    changes_spec(props, worker, connector=props.get("name", ""), task=0)


def _converters(props: Mapping[str, str], worker: Mapping[str, str]) -> dict[str, str]:
    """The converters with their settings. A worker's default header converter is not used: Java's changes the headers of
    copied records into texts.
    """
    found: dict[str, str] = {}
    for key in CONVERTER_KEYS:
        given = props if props.get(key) is not None else worker
        found[key] = (given.get(key) or BYTE_ARRAY_CONVERTER).strip()
        found |= {name: value for name, value in given.items() if name.startswith(f"{key}.")}
    return found
