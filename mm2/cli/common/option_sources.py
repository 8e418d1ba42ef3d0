"""Where the values of options come from: the command line, the environment, the user's file.

`KEYS` declares the options of all programs that have the three sources. The other options confirm something, or select what a
command acts on, what it does or writes: these are taken from the command line only, since a forgotten variable could change them.
"""

from __future__ import annotations

import argparse
import difflib
import glob
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, TextIO

import configargparse

#: Options and their keys in the user's file. The variable of a key is that of `variable_of`.
KEYS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "--file": "file",  # the argument for the properties file
        "--clusters": "clusters",
        "--log-format": "log-format",
        "--log-level": "log-level",
        "--output": "output",
        "--timeout": "timeout",
        "--url": "rest-url",
        "--user": "rest-user",
        "--cacert": "rest-cacert",
        "--cert": "rest-cert",
        "--given": "config-given",
        "--max-age": "heartbeats-max-age",
        "--threshold": "lag-threshold",
        "--top": "lag-top",
        "--rights": "plan-rights",
        "--open": "ui-open",
        "--every": "verify-every",
        "--max-bytes-per-sec": "verify-max-bytes-per-sec",
        "--parallel": "verify-parallel",
        "--patience": "verify-patience",
        "--folder": "sandbox-folder",
        "--keep": "demo-keep",
        "--rate": "demo-rate",
        "--seconds": "demo-seconds",
    }
)
_PREFIX: Final = "MM2_"
#: The variable with the path of the user's file.
CONF_VARIABLE: Final = "MM2_CONF"
SOURCES: Final = (
    "Options with [env, file] can also be set by this environment variable, or as KEY = VALUE in the user's file: that of "
    f"{CONF_VARIABLE}, else ~/.config/mm2.conf. The command line overrides the environment, which overrides the file."
)


def variable_of(key: str) -> str:
    """The environment variable of a key."""
    return _PREFIX + key.replace("-", "_").upper()


def key_of(action: argparse.Action) -> str | None:
    """The key of an option; None if it is taken from the command line only."""
    return next((KEYS[name] for name in action.option_strings if name in KEYS), None)


def sources_of(action: argparse.Action) -> str:
    """The variable and the key of an option for its help text; empty if it is taken from the command line only."""
    key = key_of(action)
    return "" if key is None else f" [env: {variable_of(key)}, file: {key}]"


def user_file() -> Path:
    """The user's file, existing or not."""
    named = os.environ.get(CONF_VARIABLE)
    if named:
        return Path(named)
    base = os.environ.get("XDG_CONFIG_HOME", "")
    # The XDG specification ignores a relative path. The home of a user without an entry in passwd remains "~".
    return Path(base if Path(base).is_absolute() else os.path.expanduser("~/.config")) / "mm2.conf"  # noqa: PTH111


@dataclass(frozen=True)
class ValueOrigin:
    """A value that is not from the command line. ``name`` is the variable, or the key in ``file``."""

    option: str
    value: str
    name: str
    file: str | None

    @property
    def place(self) -> str:
        """For messages."""
        return self.name if self.file is None else f"{self.name} in {self.file}"

    def explains(self, message: str) -> bool:
        """Whether the message has the option or the value; a value that is a common word must be in quotes."""
        is_path = self.option == "--file" or "/" in self.value
        has_value = self.value in message if is_path else repr(self.value) in message
        return has_value or bool(re.search(rf"{self.option}(?![\w-])", message))


def origins_in(options: Any, message: str) -> str:
    """Where the values in a message come from, if they were not on the command line; sentences in brackets."""
    found: list[ValueOrigin] = [one for one in options.origins if one.explains(message)]
    return "".join(f" ({one.value} is the value of {one.place}.)" for one in found)


class _UserFile(configargparse.DefaultConfigFileParser):  # type: ignore[misc]  # configargparse has no types
    def parse(self, stream: TextIO) -> dict[str, Any]:
        """The items; empty values are not set. Raises ConfigFileParserException, also for an unknown key."""
        try:
            items = super().parse(stream)
        except (OSError, UnicodeDecodeError) as error:
            raise configargparse.ConfigFileParserException(f"{stream.name} cannot be read: {error}.") from error
        for key in items:
            if key not in KEYS.values():
                close = difflib.get_close_matches(key, KEYS.values(), 1)
                hint = f"; did you mean {close[0]}?" if close else "."
                raise configargparse.ConfigFileParserException(f"{stream.name} has the unknown key {key}{hint}")
        return {key: _expanded(value) for key, value in items.items() if value != ""}


def _expanded(value: Any) -> Any:
    return os.path.expanduser(value) if isinstance(value, str) and value.startswith("~/") else value  # noqa: PTH111


class OptionHelp(argparse.HelpFormatter):
    """Appends the sources to the help of an option."""

    def _expand_help(self, action: argparse.Action) -> str:
        return super()._expand_help(action) + sources_of(action)


class SourcedParser(configargparse.ArgumentParser):  # type: ignore[misc]  # configargparse has no types
    """The parser of all programs. The result has ``origins``, a list of ValueOrigin."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._file = str(user_file())
        own = {
            "formatter_class": OptionHelp,
            "default_config_files": [glob.escape(self._file)],
            "config_file_parser_class": _UserFile,
            "config_file_open_func": self._open,
            # A key of another command. _UserFile rejects those of none.
            "ignore_unknown_config_file_keys": True,
            "auto_env_var_prefix": _PREFIX,
            # configargparse describes all options as settable; `format_help` and OptionHelp do not.
            "add_config_file_help": False,
            "add_env_var_help": False,
        }
        super().__init__(*arguments, **{**own, **options})

    def get_possible_config_keys(self, action: argparse.Action) -> list[str]:
        """The key of the option in the file, of which configargparse makes the name of the variable as well."""
        key = key_of(action)
        return [] if key is None else [key]

    def parse_known_args(self, args: Sequence[str] | None = None, namespace: Any = None, **more: Any) -> Any:
        """As argparse. An empty variable is not set."""
        more["env_vars"] = {name: value for name, value in more.get("env_vars", os.environ).items() if value}
        if not any(map(key_of, self._actions)):
            self._default_config_files: list[str] = []
        elif os.environ.get(CONF_VARIABLE) and not os.path.exists(self._file):  # noqa: PTH110 - no OSError
            self.error(f"the environment variable {CONF_VARIABLE} is {self._file!r}, and there is no such file")
        found, rest = super().parse_known_args(args, namespace, **more)
        # A parser of subcommands has the result of the subcommand's parser already.
        found.origins = [*getattr(found, "origins", ()), *self._origins()]
        return found, rest

    def _origins(self) -> list[ValueOrigin]:
        found = []
        for source, settings in self.get_source_to_settings_dict().items():
            kind, _, file = source.partition("|")
            if kind in {"environment_variables", "config_file"}:
                found += [
                    ValueOrigin(action.option_strings[-1], str(value), name, file or None)
                    for name, (action, value) in settings.items()
                ]
        return found

    def _open(self, path: str) -> TextIO:
        try:
            return Path(path).open(encoding="utf-8")
        except OSError as error:
            self.error(f"{path} cannot be read: {error.strerror}.")
            raise

    def _option_strings_that_override(self, action: argparse.Action) -> list[str]:
        """With the abbreviations that argparse accepts, which configargparse does not recognize."""
        names: list[str] = super()._option_strings_that_override(action)
        return [*names, *(name[:end] for name in names if name.startswith("--") for end in range(3, len(name)))]

    def convert_item_to_command_line_arg(self, action: argparse.Action, key: str, value: Any) -> Any:
        """As configargparse, whose messages have only the key."""
        name = f"{key} in {self._file}" if key in KEYS.values() else key
        return super().convert_item_to_command_line_arg(action, name, value)

    def _get_values(self, action: argparse.Action, arg_strings: list[str]) -> Any:
        """As argparse. An error names the variable or the file that the value is from."""
        try:
            return super()._get_values(action, arg_strings)
        except argparse.ArgumentError as error:
            names = set(action.option_strings)
            for origin in self._origins():
                if origin.option in names and arg_strings == [origin.value]:
                    raise argparse.ArgumentError(action, f"{error.message} (the value of {origin.place})") from None
            raise

    def format_help(self) -> str:
        """As argparse, with the sources of options."""
        text = str(super().format_help())
        if not any(map(key_of, self._actions)):
            return text
        formatter = self._get_formatter()
        formatter.add_text(SOURCES)
        return f"{text}\n{formatter.format_help()}"
