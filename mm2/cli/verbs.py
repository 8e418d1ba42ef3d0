"""Declares the commands of `mm2`: one parser class, and help texts that end with examples."""

from __future__ import annotations

import argparse
import difflib
import math
import sys
from typing import Any, Final, NoReturn

import configargparse

from mm2.cli.flow import EXIT_TROUBLE

_EXAMPLES: Final = "examples:"


class _Help(argparse.HelpFormatter):
    """Wraps prose and leaves examples unchanged."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if text.startswith(_EXAMPLES):
            return "\n".join(indent + line for line in text.splitlines())
        return super()._fill_text(text, width, indent)


class VerbParser(configargparse.ArgumentParser):  # type: ignore[misc]  # configargparse has no types
    """A wrong command line prints the usage and one sentence, with exit code 2."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **{"formatter_class": _Help, **options})

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """As argparse, with the closest choice. Raises ArgumentError."""
        if action.choices is None or value in action.choices:
            return
        close = difflib.get_close_matches(str(value), list(map(str, action.choices)), 1)
        hint = f"did you mean {close[0]}?" if close else f"choose from {', '.join(map(str, action.choices))}"
        raise argparse.ArgumentError(action, f"invalid choice: {value!r}; {hint}")

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        sys.stderr.write(f"{self.prog}: {message}\n")
        raise SystemExit(EXIT_TROUBLE)


def seconds(text: str) -> float:
    """The type of an argument: a duration in seconds, zero or more. Raises ArgumentTypeError."""
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not 0 <= found < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds")
    return found


def examples(*rows: tuple[str, str]) -> str:
    """The epilog of a command: purposes and the command lines for them."""
    return "\n".join([_EXAMPLES, *(f"  # {why}\n  {command}" for why, command in rows)])


def examples_of(epilog: str | None) -> list[tuple[str, str]]:
    """The inverse of `examples`."""
    lines = [line.strip() for line in (epilog or "").removeprefix(_EXAMPLES).splitlines() if line.strip()]
    return [(why.removeprefix("# "), command) for why, command in zip(lines[::2], lines[1::2], strict=True)]
