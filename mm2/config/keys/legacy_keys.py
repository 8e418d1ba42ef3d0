"""Worker keys that Kafka has removed. A worker with such keys starts and logs a warning.

``rest.host.name`` and ``rest.port`` (removed in 3.0, KIP-208) define a listener if ``listeners`` is not set. The
converters of internal topics (removed in 3.0, KIP-174) have no effect: these topics contain JSON without schemas.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from mm2.config.definitions.values import ConfigException, ConfigType, parse_type

_HOST: Final = "rest.host.name"
_PORT: Final = "rest.port"
_LISTENERS: Final = "listeners"
_INTERNAL: Final = ("internal.key.converter", "internal.value.converter")


def without_legacy_keys(props: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """A worker's settings with current keys, and one warning per removed key.

    Raises :class:`ConfigException` for a bad port.
    """
    kept = {key: value for key, value in props.items() if not _is_internal(key)}
    warnings = [
        f"Configuration {key} has no effect: internal topics hold JSON without schemas (it was removed in Kafka 3.0)."
        for key in props
        if _is_internal(key)
    ]
    old = [key for key in (_HOST, _PORT) if key in kept]
    if not old:
        return kept, warnings
    host, port = kept.pop(_HOST, "").strip(), parse_type(_PORT, kept.pop(_PORT, "8083"), ConfigType.INT)
    if not isinstance(port, int) or not 0 <= port <= 65535:
        raise ConfigException(_PORT, port, "A port is a number from 0 to 65535")
    names = " and ".join(old)
    if _LISTENERS in kept:
        warnings.append(f"Configuration {names} has no effect: {_LISTENERS} is given (it was removed in Kafka 3.0).")
        return kept, warnings
    listener = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    warnings.append(
        f"Configuration {names} was removed in Kafka 3.0; taken for {_LISTENERS}={listener}, which replaces it."
    )
    return {**kept, _LISTENERS: listener}, warnings


def _is_internal(key: str) -> bool:
    return any(key == name or key.startswith(f"{name}.") for name in _INTERNAL)
