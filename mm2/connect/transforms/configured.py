"""What transformations and predicates share: the definition and handling of their configuration keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from mm2 import __version__
from mm2.config.configdef import AbstractConfig, ConfigDef


class Configured:
    """A mixin that precedes `Transformation` or `Predicate` in the list of bases."""

    CONFIG: ClassVar[ConfigDef] = ConfigDef()

    def version(self) -> str:
        return __version__

    def config(self) -> ConfigDef:
        return self.CONFIG

    def configure(self, props: Mapping[str, Any]) -> None:
        self._configured(AbstractConfig(self.CONFIG, props))

    def _configured(self, settings: AbstractConfig) -> None:
        """Read the settings. Raises ConfigException when they are inconsistent."""
