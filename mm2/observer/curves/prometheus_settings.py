"""Settings of the Prometheus that the dashboard reads: the keys ``dashboard.prometheus.*``."""

from __future__ import annotations

import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from mm2.config.configdef import AbstractConfig, ConfigException
from mm2.config.definitions.values import Password
from mm2.config.keys.rest_keys import PROMETHEUS_CONFIG, PROMETHEUS_PREFIX
from mm2.connect.rest.settings import is_loopback
from mm2.kafka.settings.client_settings import Tls, read_tls
from mm2.kafka.settings.typed_keys import TypedKeys

_URL: Final = f"{PROMETHEUS_PREFIX}url"
_AUTHORIZATION: Final = f"{PROMETHEUS_PREFIX}authorization"
_MATCHERS: Final = f"{PROMETHEUS_PREFIX}matchers"


@dataclass(frozen=True)
class PrometheusSettings:
    """``url`` has no slash at its end, ``matchers`` may be empty."""

    url: str
    matchers: str
    authorization: Password | None
    tls: Tls = field(repr=False)

    @classmethod
    def of(cls, props: Mapping[str, str]) -> PrometheusSettings | None:
        """The settings in those of the process, resolved; None without a URL. Raises ConfigException."""
        own = {key: value for key, value in props.items() if key.startswith(PROMETHEUS_PREFIX) and value}
        config = AbstractConfig(PROMETHEUS_CONFIG, {key: own[key] for key in own if key in PROMETHEUS_CONFIG})
        url = config.values[_URL]
        if not url:
            if own:
                raise ConfigException(min(own), None, f"has no effect without {_URL}")
            return None
        authorization = config.password(_AUTHORIZATION)
        parts = urllib.parse.urlsplit(url)
        if authorization is not None and parts.scheme != "https" and not is_loopback(parts.hostname or ""):
            raise ConfigException(_URL, url, f"must begin with https://, because {_AUTHORIZATION} is a secret")
        tls = {key.removeprefix(PROMETHEUS_PREFIX): own[key] for key in own if key not in PROMETHEUS_CONFIG}
        try:
            return cls(
                url.rstrip("/"),
                config.values[_MATCHERS] or "",
                authorization,
                read_tls(TypedKeys(tls)),
            )
        except ConfigException as error:
            raise ConfigException(f"{PROMETHEUS_PREFIX}{error.name}", error.value, error.reason) from None
