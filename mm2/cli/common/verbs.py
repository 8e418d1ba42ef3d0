"""Declares the commands of `mm2`: one parser class, and help texts that end with examples."""

from __future__ import annotations

import argparse
import difflib
import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NoReturn

from mm2.cli.common.flow import EXIT_ERROR
from mm2.cli.common.option_sources import OptionHelp, SourcedParser, ValueOrigin

_EXAMPLES: Final = "examples:"
_SUFFIX: Final = ".properties"


class _Help(OptionHelp):
    """Wraps prose and leaves examples unchanged."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if text.startswith(_EXAMPLES):
            return "\n".join(indent + line for line in text.splitlines())
        return super()._fill_text(text, width, indent)


class _Unparsable(Exception):
    """The options are wrong; the verb's parser reports how."""


class _OptionsOnly(argparse.ArgumentParser):
    """A parser without arguments, which separates the options of a command line from the others."""

    def error(self, message: str) -> NoReturn:
        raise _Unparsable(message)


class _Word(str):
    """A word of a command line."""

    __slots__ = ()


class VerbParser(SourcedParser):
    """A wrong command line prints the usage and one sentence, with exit code 2."""

    #: Whether the first argument is a properties file, which may have a default.
    takes_file = False

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **{"formatter_class": _Help, **options})

    def parse_known_args(self, args: Sequence[str] | None = None, namespace: Any = None, **more: Any) -> Any:
        """As argparse. Options may be between the arguments, and the file may be omitted if it has a default."""
        given = sys.argv[1:] if args is None else list(args)
        file = None
        if self.takes_file and not {"-h", "--help", "--"} & set(given):
            arguments, options = self._separated(given)
            if self._omits_file(arguments) and (file := self._default_file()):
                if not Path(file.value).is_file():
                    kind = "the environment variable " if file.file is None else ""
                    self.error(f"{kind}{file.place} is {file.value!r}, and there is no such file")
                arguments = [file.value, *arguments]
            # Before the options: argparse fills an optional argument with nothing if an option precedes it.
            given = [*arguments, *options]
        found, rest = super().parse_known_args(given, namespace, **more)
        if file:
            found.origins.append(replace(file, value=str(found.config)))
        return found, rest

    def _default_file(self) -> ValueOrigin | None:
        """The default of the file. It is read as an option of its own: configargparse has no variables for arguments."""
        parser = SourcedParser(prog=self.prog, add_help=False)
        parser.error = self.error
        parser.add_argument("--file")
        found, _ = parser.parse_known_args([])
        return next(iter(found.origins), None)

    def _separated(self, given: Sequence[str]) -> tuple[list[str], list[str]]:
        """The arguments, and the options with their values."""
        parser = _OptionsOnly(add_help=False)
        for action in self._actions:
            if action.option_strings and not isinstance(action, argparse._HelpAction):  # noqa: SLF001
                parser._add_action(action)  # noqa: SLF001 - argparse has no public API for this
        words = [_Word(one) for one in given]  # objects of their own, since values of options may be equal to arguments
        try:
            _, others = parser.parse_known_args(words)
        except _Unparsable:
            return [], list(given)
        arguments = {id(one) for one in others if not one.startswith("-")}
        return (
            [str(one) for one in words if id(one) in arguments],
            [str(one) for one in words if id(one) not in arguments],
        )

    def _omits_file(self, arguments: Sequence[str]) -> bool:
        """Whether the first argument is not a file: it has not the suffix of properties files, and there is no such file."""
        if not arguments:
            return True
        is_only_one = len(self._get_positional_actions()) == 1
        return not (is_only_one or arguments[0].endswith(_SUFFIX) or Path(arguments[0]).is_file())

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
        raise SystemExit(EXIT_ERROR)


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
