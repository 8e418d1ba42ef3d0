"""Parser of `sasl.jaas.config`, a login configuration in one line (KIP-85)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

CONTROL_FLAGS = ("required", "requisite", "sufficient", "optional")

_TOKEN = re.compile(
    r"""
    (?P<blank>\s+|//[^\n]*|/\*.*?\*/)
    | (?P<quoted>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
    | (?P<word>[^\s"'=;]+)
    | (?P<sign>[=;])
    """,
    re.VERBOSE | re.DOTALL,
)
_ESCAPE = re.compile(r"\\([0-3]?[0-7]{1,2}|.)", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "a": "\a", "v": "\v"}


class JaasError(ValueError):
    """The text is not a JAAS login configuration. The message never quotes the text, which may contain a password."""


@dataclass(frozen=True, slots=True)
class JaasEntry:
    """One login module: its class name, control flag and options."""

    module: str
    control_flag: str
    options: Mapping[str, str] = field(repr=False)


def parse_jaas(text: str) -> JaasEntry:
    """Parse `module flag name=value … ;` with the quoting of Java's `StreamTokenizer`, as Kafka's `JaasConfig` does.

    Values may be quoted with " or ', with backslash escapes inside. Raises JaasError, also for more than one module: a
    client logs in once.
    """
    tokens = list(_tokens(text))
    if not tokens or tokens[0].sign:
        raise JaasError("login module is missing")
    module = tokens[0].text
    flag = tokens[1].text.lower() if len(tokens) > 1 else ""
    if flag not in CONTROL_FLAGS:
        # The message quotes no part of the text: a wrong flag may be the password.
        raise JaasError(f"a control flag must follow the login module (one of {', '.join(CONTROL_FLAGS)})")
    options: dict[str, str] = {}
    position = 2
    while position < len(tokens) and tokens[position] != _END:
        name, equals, value = [*tokens[position : position + 3], _END, _END][:3]
        if name.sign or equals != _EQUALS or value.sign:
            raise JaasError(
                "an option must be written as name=value, with a blank between options and a semicolon at the end"
            )
        options[name.text] = value.text
        position += 3
    if position >= len(tokens):
        raise JaasError("the entry must end with a semicolon")
    if position + 1 < len(tokens):
        raise JaasError("exactly one login module is allowed")
    return JaasEntry(module, flag, options)


class _JaasToken(NamedTuple):
    text: str
    sign: bool


_EQUALS = _JaasToken("=", sign=True)
_END = _JaasToken(";", sign=True)


def _tokens(text: str) -> Iterator[_JaasToken]:
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise JaasError("a quoted value does not end")
        position = match.end()
        if match["quoted"] is not None:
            yield _JaasToken(_ESCAPE.sub(_unescape, match["quoted"][1:-1]), sign=False)
        elif match["blank"] is None:
            yield _JaasToken(match[0], sign=match["sign"] is not None)


def _unescape(match: re.Match[str]) -> str:
    code = match[1]
    if code[0] in "01234567":
        return chr(int(code, 8))
    return _ESCAPES.get(code, code)
