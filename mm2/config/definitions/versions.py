"""Plugin versions and version ranges (KIP-891): ranges in Maven's syntax, as in Kafka, versions in Python's order.

``1.0`` means exactly this version; ``[1.0,2.0)`` at least 1.0 and below 2.0; ``[1.0,)`` at least 1.0; ``(,1.0],[1.2,)``
either range; ``latest`` the newest version.

Versions are compared by PEP 440. Java's forms are supported too: ``1.0-SNAPSHOT`` is older than ``1.0``, which equals
``1.0.Final``. Any other text, such as "undefined", is older than every version.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property, total_ordering
from itertools import pairwise
from typing import Final

from packaging import version as pep440

_SNAPSHOT: Final = re.compile(r"[-.]snapshot$", re.IGNORECASE)
_RELEASE: Final = re.compile(r"[-.](final|ga|release)$", re.IGNORECASE)


@total_ordering
@dataclass(frozen=True, eq=False)
class Version:
    """A comparable version; any text is one."""

    text: str

    def __str__(self) -> str:
        return self.text

    @cached_property
    def _parsed(self) -> pep440.Version | None:
        try:
            return pep440.Version(_RELEASE.sub("", _SNAPSHOT.sub(".dev0", self.text)))
        except pep440.InvalidVersion:
            return None

    def __hash__(self) -> int:
        return hash(self._parsed or self.text)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Version):
            return NotImplemented
        if self._parsed is None or other._parsed is None:
            return self.text == other.text
        return self._parsed == other._parsed

    def __lt__(self, other: Version) -> bool:
        if self._parsed is None or other._parsed is None:
            return (self._parsed is not None, self.text) < (other._parsed is not None, other.text)
        return self._parsed < other._parsed


class InvalidVersionRange(ValueError):
    """A text is not a version range; the message gives the reason."""


@dataclass(frozen=True)
class _Span:
    lower: Version | None
    lower_included: bool
    upper: Version | None
    upper_included: bool

    def __contains__(self, version: Version) -> bool:
        if self.lower is not None and (version < self.lower or (version == self.lower and not self.lower_included)):
            return False
        return self.upper is None or version < self.upper or (version == self.upper and self.upper_included)


@dataclass(frozen=True)
class VersionRange:
    """A set of acceptable versions. ``str`` is the original text, in brackets."""

    text: str
    spans: tuple[_Span, ...]

    def __str__(self) -> str:
        return self.text

    def __contains__(self, version: str) -> bool:
        return any(Version(version) in span for span in self.spans)


def version_requirement(text: str | None) -> VersionRange | None:
    """Parse ``*.plugin.version``; None: the newest version (Kafka's ``PluginUtils.connectorVersionRequirement``).

    Raises :class:`InvalidVersionRange`.
    """
    if text is None or text.strip() in {"", "latest"}:
        return None
    text = text.strip()
    if not text.startswith(("[", "(")):
        _refuse_brackets(text)
        text = f"[{text}]"
    spans: list[_Span] = []
    rest = text
    while rest.startswith(("[", "(")):
        ends = [place for bracket in ")]" if (place := rest.find(bracket)) >= 0]
        if not ends:
            raise InvalidVersionRange(f"Unbounded range: {text}")
        end = min(ends) + 1
        spans.append(_span(rest[:end]))
        rest = rest[end:].strip().removeprefix(",").strip()
    if rest:
        raise InvalidVersionRange(f"Only fully-qualified sets allowed in multiple set scenario: {text}")
    for before, after in pairwise(spans):
        if before.upper is None or after.lower is None or after.lower < before.upper:
            raise InvalidVersionRange(f"Ranges overlap: {text}")
    return VersionRange(text, tuple(spans))


def _refuse_brackets(text: str) -> None:
    if not text or any(bracket in text for bracket in "[]()"):
        raise InvalidVersionRange(f"Not a version: {text!r}")


def _span(text: str) -> _Span:
    included = text[0] == "[", text[-1] == "]"
    body = text[1:-1].strip()
    if "," not in body:
        if included != (True, True):
            raise InvalidVersionRange(f"Single version must be surrounded by []: {text}")
        _refuse_brackets(body)
        return _Span(Version(body), True, Version(body), True)
    lower, _, upper = (part.strip() for part in body.partition(","))
    if lower and upper and Version(upper) < Version(lower):
        raise InvalidVersionRange(f"Range defies version ordering: {text}")
    return _Span(Version(lower) if lower else None, included[0], Version(upper) if upper else None, included[1])
