"""The configuration in effect: each value and its origin."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from nicegui import ui

from mm2.config.origins import Level, Setting
from mm2.observer.views import Snapshot
from mm2.ui.elements.listing import Listing, Query
from mm2.ui.elements.parts import Browser, Column, Element, Row
from mm2.ui.source import Settings

_PROCESS: Final = "process"
_EXPLICIT: Final = "given"
_KINDS: Final = {_EXPLICIT: "Explicit settings", "": "Including defaults"}
_ORIGINS: Final[Mapping[Level, str]] = {
    Level.DERIVED: "MirrorMaker",
    Level.DEFAULT: "default",
}
_COLUMNS: Final = (
    Column("Key", "head name", "key"),
    Column("Value", "wide"),
    Column("From", "", "origin"),
    Column("For", "word", "part"),
)
#: How often the file is checked while the page is open.
_REFRESH_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class _Setting:
    flow: str
    part: str
    setting: Setting

    @property
    def origin(self) -> str:
        setting = self.setting
        if not setting.origin:
            return _ORIGINS.get(setting.level, "")
        line = "" if setting.line is None else f"line {setting.line}: "
        overridden = f", instead of {', '.join(setting.overrides)}" if setting.overrides else ""
        return f"{line}{setting.origin}{overridden}"


_LISTING: Final = Listing[_Setting](
    flow=lambda entry: entry.flow,
    text=lambda entry: f"{entry.setting.key} {entry.setting.value} {entry.setting.origin} {entry.part}",
    kind=lambda entry, _: entry.setting.level is not Level.DEFAULT,
    keys={
        "key": lambda entry: (entry.setting.key, entry.flow, entry.part),
        "origin": lambda entry: (entry.setting.line is None, entry.setting.line or 0, entry.origin),
        "part": lambda entry: (entry.flow, entry.part, entry.setting.key),
    },
)


class ConfigurationView:
    """The configuration of the process and of all flows, or of one of them."""

    def __init__(self, settings: Callable[[], Settings], wanted: Mapping[str, str]) -> None:
        self._settings = settings
        self._wanted = wanted
        self._entries: Sequence[_Setting] = ()
        Element("h1", "Configuration")
        self._lead = Element("p", "Reading …", "lead", role="status")
        self._unknown_keys = Element("p", "", "message bad")
        self._container = ui.element("div")
        self._browser: Browser | None = None
        ui.timer(_REFRESH_S, self._read)

    def show(self, snapshot: Snapshot) -> None:
        """See View. Changes with the file, not with the snapshot."""

    async def _read(self) -> None:
        settings = await asyncio.to_thread(self._settings)
        self._entries = [
            _Setting(flow or _PROCESS, section.name, setting)
            for flow, sections in settings.sections.items()
            for section in sections
            for setting in section.settings
        ]
        self._lead.show(
            "Settings in effect, each with the line of the file or the default that it comes from. Secrets are hidden; values of "
            "config providers are shown as references."
        )
        self._unknown_keys.show(
            "Unknown keys: "
            + "; ".join(
                f"{one.key}{f' (line {one.line})' if one.line else ''}"
                f"{f', did you mean {one.nearest}?' if one.nearest else ''}"
                for one in settings.unread
            )
            if settings.unread
            else ""
        )
        self._unknown_keys.set_visibility(bool(settings.unread))
        if self._browser is None:
            with self._container:
                self._browser = self._make([flow or _PROCESS for flow in settings.sections])
        self._browser.show()

    def _make(self, flows: Sequence[str]) -> Browser:
        return Browser(
            _COLUMNS,
            lambda query: _LISTING.select(self._entries, query),
            _row,
            flow_of=lambda entry: entry.flow,
            query=Query.of(self._wanted, _EXPLICIT),
            kind=(_EXPLICIT, "state"),
            noun="settings",
            caption="Settings in effect and their origins",
            nothing="No setting matches.",
            search="Key, value or origin",
            kinds=_KINDS,
            flows=flows,
        )


def _row(entry: _Setting) -> Row:
    return Row((entry.setting.key, entry.setting.value, entry.origin, entry.part))
