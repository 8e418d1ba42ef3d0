"""Output formats of the verbs: text for people, JSON and YAML for programs."""

from __future__ import annotations

import argparse
import json
import math
import sys
from enum import StrEnum
from typing import Any, TextIO

from mm2.codec import encode


class OutputFormat(StrEnum):
    """The values of ``--output``."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"


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

    Its objects are written by `mm2.codec.encode`. ``indent`` and ``ascii_only`` are those of JSON. ``is_one_of_many``: others may follow.
    """
    out = out or sys.stdout
    text = json.dumps(encode(document), indent=indent, ensure_ascii=ascii_only)
    if getattr(options, "output", OutputFormat.JSON) is not OutputFormat.YAML:
        out.write(f"{text}\n")
        return
    import yaml  # noqa: PLC0415  (not for the other formats: they start faster without)

    yaml.safe_dump(
        json.loads(text), out, sort_keys=False, allow_unicode=True, explicit_start=is_one_of_many, width=math.inf
    )
