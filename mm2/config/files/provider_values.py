"""Values of config providers, and their removal from texts: the reference is shown in place of the value.

Java shows resolved values in validation responses, error texts and traces; see docs/reference/compatibility.md.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, Self
from urllib.parse import quote

from mm2.config.definitions.values import ConfigException, show, split_list, trim
from mm2.config.keys.difference import is_showable

#: Shorter values are replaced only where a text presents them as a setting's value: "1" is part of most texts.
_LEAST: Final = 4
#: Shorter values are replaced only where they are a whole word.
_PART_OF_WORD: Final = 8
_BROKERS: Final = re.compile(r"[\w.-]+:\d{1,5}(\s*,\s*[\w.-]+:\d{1,5})*")
#: Upper bound of the values that logs are searched for; the oldest are forgotten first.
_MOST_KNOWN: Final = 5_000
_NEVER: Final = re.compile(r"(?!)")


@dataclass(frozen=True)
class ResolvedSetting:
    """One setting with references: as written, as resolved, and the value of each reference."""

    written: str
    resolved: str = field(repr=False)
    #: (value, reference).
    parts: tuple[tuple[str, str], ...] = field(repr=False)


@dataclass(frozen=True)
class ProviderValues:
    """The settings of one configuration that contain values of config providers, by key."""

    settings: Mapping[str, ResolvedSetting] = field(default_factory=dict)

    def written(self, key: str) -> str | None:
        """The setting as written, if it contains a value of a provider."""
        setting = self.settings.get(key)
        return None if setting is None else setting.written

    def hide(self, text: str) -> str:
        """``text`` with the reference in place of each value, also where a value is quoted, split or escaped."""
        return self._replacing.hide(text) if self.settings else text

    @contextmanager
    def hidden_in_errors(self) -> Iterator[None]:
        """A block whose exceptions contain no values. Their class stays, unless its text cannot be replaced."""
        try:
            yield
        except Exception as error:
            if self.hide(str(error)) == str(error):
                raise
            text = self.hide(str(error))
            error.args = tuple(
                self.hide(argument) if isinstance(argument, str) else argument for argument in error.args
            )
            if str(error) != text:
                raise ConfigException(text) from None
            raise error from None

    @cached_property
    def _replacing(self) -> _Replacements:
        return _Replacements.of(self)


@dataclass(frozen=True)
class _Replacements:
    """Texts and what replaces them."""

    by_text: Mapping[str, str]
    values: re.Pattern[str]
    #: Kafka's ``Invalid value x for configuration k``, for the keys with values of a provider.
    invalid: re.Pattern[str] = _NEVER
    written: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, values: ProviderValues) -> Self:
        """The replacements of one configuration."""
        by_text: dict[str, str] = {}
        for setting in values.settings.values():
            by_text |= _spellings(setting)
        written = {key: setting.written for key, setting in values.settings.items()}
        # Transformations and converters are validated without the prefix of their keys.
        keys = "|".join(re.escape(part) for key in sorted(written) for part in _suffixes(key))
        invalid = re.compile(
            rf"(Invalid value )(?!null for)(?:(?!Invalid value ).)*?( for configuration )({keys})(?![\w.-])", re.DOTALL
        )
        return cls(by_text, _any_of(by_text), invalid, written)

    def hide(self, text: str) -> str:
        """The text with all replacements made."""
        text = self.invalid.sub(lambda found: f"{found[1]}{self._reference(found[3])}{found[2]}{found[3]}", text)
        return self.values.sub(lambda found: self.by_text[found[0]], text)

    def _reference(self, key: str) -> str:
        return next(text for name, text in self.written.items() if name == key or name.endswith(f".{key}"))


def _suffixes(key: str) -> list[str]:
    names = key.split(".")
    return [".".join(names[start:]) for start in range(len(names))]


def _any_of(texts: Mapping[str, str]) -> re.Pattern[str]:
    """Matches the longest of the texts at each position."""
    if not texts:
        return _NEVER
    alternatives = (
        re.escape(text) if len(text) >= _PART_OF_WORD else rf"(?<![^\W_]){re.escape(text)}(?![^\W_])"
        for text in sorted(texts, key=lambda text: (-len(text), text))
    )
    return re.compile("|".join(alternatives))


def _spellings(setting: ResolvedSetting) -> dict[str, str]:
    """The texts in which the values of a setting may occur, with their replacements; none below the minimum length."""
    found: dict[str, str] = {}
    for value, shown_as in (*setting.parts, (setting.resolved, setting.written)):
        pieces = [value, trim(value), show(split_list(value)), *split_list(value), *value.splitlines()]
        for piece in pieces:
            for text in (piece, repr(piece)[1:-1], json.dumps(piece)[1:-1], quote(piece), quote(piece, safe="")):
                if len(text) >= _LEAST:
                    found.setdefault(text, shown_as)
    return found


def _spellings_in_logs(key: str, setting: ResolvedSetting) -> dict[str, str]:
    """As :func:`_spellings`, but names of topics, clusters, groups and brokers stay: logs are full of them."""
    whole = setting.resolved.strip()
    if _BROKERS.fullmatch(whole):
        return {}
    if any(is_showable(part) for part in _suffixes(key)):
        return {whole: setting.written} if len(whole) >= _PART_OF_WORD else {}
    return _spellings(setting)


class _KnownValues:
    """The values that this process has read from config providers."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_text: dict[str, str] = {}
        #: None: to be made.
        self._replacing: _Replacements | None = None

    def remember(self, values: ProviderValues) -> None:
        """Add the values of a configuration. A value that another one also has is shown as the last reference to it."""
        added: dict[str, str] = {}
        for key, setting in values.settings.items():
            for text, shown_as in _spellings_in_logs(key, setting).items():
                added.setdefault(text, shown_as)
        with self._lock:
            for text, shown_as in added.items():
                if self._by_text.pop(text, None) != shown_as:
                    self._replacing = None
                self._by_text[text] = shown_as
            while len(self._by_text) > _MOST_KNOWN:
                del self._by_text[next(iter(self._by_text))]
                self._replacing = None

    def within(self, texts: Iterable[str]) -> dict[str, str]:
        """What replaces the known values that these texts contain, also where they are quoted, split or escaped."""
        searched = list(texts)
        with self._lock:
            by_text = dict(self._by_text)
        shown = {shown_as for text, shown_as in by_text.items() if any(text in one for one in searched)}
        return {text: shown_as for text, shown_as in by_text.items() if shown_as in shown}

    def hide(self, text: str) -> str:
        """``text`` with references in place of all known values."""
        with self._lock:
            if self._replacing is None:
                self._replacing = _Replacements(dict(self._by_text), _any_of(self._by_text))
            replacing = self._replacing
        return replacing.hide(text)


_KNOWN: Final = _KnownValues()
remember = _KNOWN.remember
"""Add the values of a configuration to those that :func:`hide_known` replaces."""
known_within = _KNOWN.within
"""For another process, which reads no values: the replacements for `hider`, of the values that some texts contain."""
hide_known = _KNOWN.hide
"""A text for a log or a terminal, with references in place of the values of all configurations of this process.

Settings that are declared and no passwords, such as names of topics and clusters, are replaced only where the text
contains the whole value and it has at least eight characters: otherwise each line about a topic would lose its name.
"""


def hider(replacements: Mapping[str, str]) -> Callable[[str], str]:
    """Makes these replacements, from `known_within`, in a text."""
    return _Replacements(replacements, _any_of(replacements)).hide
