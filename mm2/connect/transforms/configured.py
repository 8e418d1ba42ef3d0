"""What transformations and predicates have in common: a definition of their keys, which they are configured by."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from mm2 import __version__
from mm2.config.configdef import AbstractConfig, ConfigDef


class Configured:
    """Stands before `Transformation` or `Predicate` among the bases of a class."""

    CONFIG: ClassVar[ConfigDef] = ConfigDef()

    def version(self) -> str:
        return __version__

    def config(self) -> ConfigDef:
        return self.CONFIG

    def configure(self, props: Mapping[str, Any]) -> None:
        self._configured(AbstractConfig(self.CONFIG, props))

    def _configured(self, settings: AbstractConfig) -> None:
        """Take over the settings. Raises ConfigException when they do not go together."""
