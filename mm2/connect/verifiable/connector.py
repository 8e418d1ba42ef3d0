"""What the connectors in this package share: they only number their tasks."""

from __future__ import annotations

from typing import ClassVar, Final

from mm2 import __version__
from mm2.config.configdef import ConfigDef, Importance, Type
from mm2.connect.api import Connector

_ID: Final = "id"


def with_id(definition: ConfigDef) -> ConfigDef:
    """The task keys of a connector with these keys."""
    return ConfigDef(definition).define(
        _ID, Type.INT, importance=Importance.HIGH, doc="Number of the task, given by the connector."
    )


class NumberingConnector(Connector):
    """Runs tasks.max tasks and passes each its number (``id``, from 0)."""

    CONFIG: ClassVar[ConfigDef]

    def version(self) -> str:
        return __version__

    def start(self, props: dict[str, str]) -> None:
        self._props = props

    def stop(self) -> None:
        return

    def task_configs(self, max_tasks: int) -> list[dict[str, str]]:
        return [{**self._props, _ID: str(number)} for number in range(max_tasks)]

    def config(self) -> ConfigDef:
        return self.CONFIG
