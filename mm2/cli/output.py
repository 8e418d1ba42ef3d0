"""Output formats of the verbs: text for people, JSON and YAML for programs."""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Any, Final, TextIO


class OutputFormat(StrEnum):
    """The values of ``--output``."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"


#: A plain scalar that every version of YAML reads as a string, if it is not one of `_OTHER_TYPES`.
_PLAIN: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_./>-]*")
#: YAML 1.1 reads these as booleans and null.
_OTHER_TYPES: Final = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null"})


class _SetFormat(argparse.Action):
    """Sets ``output``, and ``json`` to whether the output is a document for programs."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: Any, values: Any, option_string: str | None = None
    ) -> None:
        chosen = OutputFormat(values) if self.nargs != 0 else OutputFormat.JSON
        namespace.output = chosen
        namespace.json = chosen in {OutputFormat.JSON, OutputFormat.YAML}


def add_output(parser: Any, *, wide: bool = False) -> None:
    """Add ``--output`` and its synonym ``--json``; ``wide``: the verb has a table with more columns."""
    formats = [one.value for one in OutputFormat if wide or one is not OutputFormat.WIDE]
    more = ", wide: tables with more columns, one line for each partition" if wide else ""
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument(
        "-o",
        "--output",
        action=_SetFormat,
        choices=formats,
        default=OutputFormat.TABLE,
        help=f"json or yaml for programs, table for people (default){more}",
    )
    choice.add_argument(
        "--json", action=_SetFormat, nargs=0, default=False, dest="json", help="the same as --output json"
    )


def is_wide(options: Any) -> bool:
    """Whether tables have more columns."""
    return getattr(options, "output", OutputFormat.TABLE) is OutputFormat.WIDE


def write_document(
    options: Any,
    document: object,
    out: TextIO | None = None,
    *,
    indent: int | None = 2,
    ascii_only: bool = False,
    is_one_of_many: bool = False,
) -> None:
    """Write a document in the chosen format, JSON or YAML.

    Sets become sorted lists. ``indent`` and ``ascii_only`` are those of JSON. ``is_one_of_many``: others may follow.
    """
    out = out or sys.stdout
    text = json.dumps(document, indent=indent, ensure_ascii=ascii_only, default=sorted)
    if getattr(options, "output", OutputFormat.JSON) is not OutputFormat.YAML:
        out.write(f"{text}\n")
        return
    out.write("---\n" if is_one_of_many else "")
    out.write(yaml_text(json.loads(text)))


def yaml_text(value: object) -> str:
    """A JSON value as YAML in block style; can be read as YAML 1.1 and 1.2."""
    return "\n".join(_block(value, 0)) + "\n"


def _block(value: object, depth: int) -> Iterator[str]:
    """The lines of a value, indented."""
    indent = "  " * depth
    if isinstance(value, Mapping) and value:
        for key, one in value.items():
            yield from _entry(f"{indent}{_scalar(str(key))}:", one, depth + 1)
    elif isinstance(value, list) and value:
        for one in value:
            if _is_nested(one):
                first, *rest = _block(one, depth + 1)
                yield f"{indent}- {first.lstrip(' ')}"
                yield from rest
            else:
                yield f"{indent}- {_scalar(one)}"
    else:
        yield f"{indent}{_scalar(value)}"


def _entry(key: str, value: object, depth: int) -> Iterator[str]:
    if _is_nested(value):
        yield key
        yield from _block(value, depth)
    else:
        yield f"{key} {_scalar(value)}"


def _is_nested(value: object) -> bool:
    return isinstance(value, (Mapping, list)) and bool(value)


def _scalar(value: object) -> str:
    """A value without parts. An empty list or mapping is written as in JSON."""
    if isinstance(value, str):
        is_plain = _PLAIN.fullmatch(value) and value.lower() not in _OTHER_TYPES
        return value if is_plain else "".join(map(_escaped, json.dumps(value, ensure_ascii=False)))
    if isinstance(value, float):
        return _number(value)
    return json.dumps(value)


def _escaped(character: str) -> str:
    return character if character.isprintable() else f"\\U{ord(character):08x}"


def _number(value: float) -> str:
    """YAML 1.1 reads an exponent only after a decimal point."""
    if not math.isfinite(value):
        return {math.inf: ".inf", -math.inf: "-.inf"}.get(value, ".nan")
    digits, sign, exponent = repr(value).partition("e")
    if not sign:
        return digits
    mantissa = digits if "." in digits else f"{digits}.0"
    return f"{mantissa}e{exponent if exponent.startswith('-') else '+' + exponent.lstrip('+')}"
