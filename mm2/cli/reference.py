"""Generates docs/reference/commands.md from the parsers: ``python -m mm2.cli.reference > docs/reference/commands.md``."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

from mm2.cli.common.option_sources import key_of, variable_of
from mm2.cli.common.verbs import examples_of
from mm2.cli.mm2 import parser

_HEAD: Final = """# Commands of mm2

Generated from the argument parsers by `python -m mm2.cli.reference`. `mm2 VERB --help` prints the same. In a clone of the repository the
command is `bin/mm2`.

The environment variable `MM2_FILE` has the default of the properties file: `export MM2_FILE=/etc/mm2.properties`, then `mm2 status 'A->B'`.
While it is set, the first argument of a verb is the file only if its name ends with `.properties` or a file of that name exists.

An option comes from the command line, else from its environment variable, else from the user's file, else it has its default. An empty
variable is not set. The user's file is that of `MM2_CONF`, else `$XDG_CONFIG_HOME/mm2.conf` or `~/.config/mm2.conf`. It has a line `key = value`
for each option, `file = /etc/mm2.properties` for the properties file; an unknown key is an error. Options without a variable below confirm
something, or select what a command acts on, does or writes; they are taken from the command line only. Passwords and tokens are never in the
file: `MM2_REST_PASSWORD`, `MM2_REST_TOKEN` and `MM2_REST_KEY_PASSWORD` are variables only.

On a terminal, states are coloured unless `NO_COLOR` is set.

| exit code | default meaning |
| --- | --- |
| 0 | healthy |
| 1 | not healthy |
| 2 | the command failed: wrong usage, an invalid file, an unavailable cluster |
| 130 | interrupted by Ctrl-C |
"""

#: An argument of that many verbs is described once, before them.
_SHARED: Final = 3


def reference() -> str:
    """The whole page. Options that three or more verbs share are described once."""
    found = verbs()
    index = "".join(f"- [{name}](#{_anchor(name)}): {text}\n" for name, _, text in found if name.count(" ") == 1)
    times = Counter(entry for _, verb, _ in found if not _subcommands(verb) for entry in map(_entry, _arguments(verb)))
    shared = "".join(entry for entry, count in times.items() if count >= _SHARED)
    sections = (_section(name, verb, times) for name, verb, _ in found)
    return f"{_HEAD}\n{index}\n## Arguments of several verbs\n\n{shared}\n{chr(10).join(sections)}"


def verbs() -> list[tuple[str, Any, str]]:
    """(name, parser, help) of all commands by name, each followed by its subcommands."""
    return list(_verbs(parser(), "mm2"))


def _verbs(of: Any, name: str) -> Iterator[tuple[str, Any, str]]:
    for action in of._actions:  # noqa: SLF001 - argparse has no public API for this
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            helps = {choice.dest: choice.help or "" for choice in action._choices_actions}  # noqa: SLF001
            for verb, made in sorted(action.choices.items()):
                yield f"{name} {verb}", made, helps.get(verb, "")
                yield from _verbs(made, f"{name} {verb}")


def _section(name: str, verb: Any, times: Counter[str]) -> str:
    arguments = _arguments(verb)
    parts = [f"## {name}\n", f"{verb.description}\n"]
    if not _subcommands(verb):
        parts.append(f"```text\n{name}{''.join(map(_usage, sorted(arguments, key=_is_option)))}\n```\n")
        if own := [entry for entry in map(_entry, arguments) if times[entry] < _SHARED]:
            parts.append("".join(own))
    if shown := examples_of(verb.epilog):
        parts.append("```sh\n" + "".join(f"# {why}\n{command}\n" for why, command in shown) + "```\n")
    return "\n".join(parts)


def _arguments(verb: Any) -> list[Any]:
    return [action for action in verb._actions if not isinstance(action, argparse._HelpAction)]  # noqa: SLF001


def _subcommands(verb: Any) -> bool:
    return any(isinstance(action, argparse._SubParsersAction) for action in verb._actions)  # noqa: SLF001


def _entry(action: Any) -> str:
    return f"- {_named(action)}: {_escaped(_help(action))}{_sources(action)}\n"


def _is_option(action: Any) -> bool:
    return bool(action.option_strings)


def _usage(action: Any) -> str:
    if not action.option_strings:
        name = _value(action)
        return f" [{name}{' …' if action.nargs == '*' else ''}]" if action.nargs in {"?", "*"} else f" {name}"
    text = action.option_strings[-1] + (f" {_value(action)}" if _takes_value(action) else "")
    return f" {text}" if action.required else f" [{text}]"


def _named(action: Any) -> str:
    names = ", ".join(action.option_strings) or _value(action)
    return f"`{names}{f' {_value(action)}' if action.option_strings and _takes_value(action) else ''}`"


def _takes_value(action: Any) -> bool:
    return bool(action.nargs != 0)


def _value(action: Any) -> str:
    shown = action.metavar or ("|".join(map(str, action.choices)) if action.choices else action.dest.upper())
    return f"[{shown}]" if action.option_strings and action.nargs == "?" else str(shown)


def _help(action: Any) -> str:
    return (action.help or "") % {"default": action.default, "prog": "mm2"} if action.help else ""


def _sources(action: Any) -> str:
    key = key_of(action)
    return "" if key is None else f" (`{variable_of(key)}`, in the user's file `{key}`)"


def _escaped(text: str) -> str:
    return text.replace("<", "&lt;")


def _anchor(name: str) -> str:
    return name.replace(" ", "-")


if __name__ == "__main__":
    sys.stdout.write(reference())
