"""`mm2 config`: the settings in effect and their origins."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final, TextIO

from mm2.cli.common.flow import EXIT_NOT_WELL, EXIT_WELL, CommandError, add_file, pair_of
from mm2.cli.common.output import write_document
from mm2.cli.common.tables import table
from mm2.cli.common.terminal import visible_line
from mm2.cli.common.verbs import examples
from mm2.codec import encode
from mm2.config.files.properties import parse_properties, property_lines, read_text
from mm2.config.keys.mirror_keys import CONNECTOR_CLASSES
from mm2.config.mirrormaker import MirrorMakerConfig
from mm2.config.origins import (
    PROCESS,
    WORKER,
    Level,
    Setting,
    SettingsSection,
    UnreadKey,
    flow_settings,
    matching,
    process_settings,
    unread,
)

#: The accepted names of each part of a flow; the first is the one displayed.
PARTS: Final = {
    WORKER: (WORKER,),
    **{
        name: (name, name.removeprefix("Mirror").removesuffix("Connector").lower())
        for name in (java_class.rpartition(".")[2] for java_class in CONNECTOR_CLASSES)
    },
}


def part_named(text: str) -> str:
    """`MirrorSourceConnector` for ``source``, case-insensitive. Raises CommandError."""
    for name, called in PARTS.items():
        if text.strip().lower() in {alias.lower() for alias in called}:
            return name
    known = ", ".join(called[-1] for called in PARTS.values())
    raise CommandError(f"There is no connector {text}; write one of {known}.")


def add(verbs: Any) -> None:
    """Declare the command and its arguments."""
    parser = verbs.add_parser(
        "config",
        help="the settings in effect, and where each comes from",
        description="The effective settings of the process, and for each flow those of its worker and its three "
        "connectors. Each is shown with the key and line of the file that sets it and the keys that it "
        "overrides, or as derived or default. Passwords and values of unknown keys are hidden; values of a "
        "config provider are shown as references. Keys that are unknown, or have no or a limited effect, follow with the reason. "
        "Does not connect to any cluster. Exit code: 0 the file is valid, 1 it has unknown keys, 2 it cannot be read, or has a "
        "refused key.",
        epilog=examples(
            ("settings that are not at their default", "mm2 config mm2.properties --given"),
            ("one connector of one flow", "mm2 config mm2.properties 'A->B' --connector source"),
            ("where a value comes from", "mm2 config mm2.properties 'A->B' --key replication.factor"),
        ),
    )
    add_file(parser, flow="?")
    parser.add_argument(
        "--connector", metavar="C", help="only this part of a flow: source, checkpoint, heartbeat, or worker"
    )
    parser.add_argument("--key", metavar="TEXT", help="only keys that contain this")
    parser.add_argument("--given", action="store_true", help="only what the file gives")
    parser.set_defaults(run=run)


def run(options: Any) -> int:
    """Run the command; returns the exit code. Raises CommandError or ConfigException."""
    part = None if options.connector is None else part_named(options.connector)
    file: Path = options.config
    text = read_text(file)
    lines = property_lines(text, source=str(file))
    config = MirrorMakerConfig(parse_properties(text, source=str(file)))
    pairs = config.cluster_pairs() if options.flow is None else [pair_of(config, file, options.flow)]

    def chosen(sections: Iterable[SettingsSection]) -> list[SettingsSection]:
        found = [one for one in sections if part in {None, one.name}]
        if options.given:
            found = [
                SettingsSection(one.name, tuple(filter(lambda setting: setting.origin, one.settings))) for one in found
            ]
        return found if options.key is None else matching(found, options.key)

    process = chosen([process_settings(config, lines)]) if options.flow is None else []
    flows = {str(pair): chosen(flow_settings(config, pair, lines)) for pair in pairs}
    if options.key is not None and not any((process, *flows.values())):
        raise CommandError(f"No setting has a key that contains {options.key}.")
    unused = unread(config, lines)
    ineffective = config.ineffective_keys({pair.target for pair in pairs})
    if options.json:
        document = {
            "file": str(file),
            PROCESS: [encode(one) for section in process for one in section.settings],
            "flows": {
                flow: {section.name: section.settings for section in sections} for flow, sections in flows.items()
            },
            "unread": [{"key": one.key, "line": one.line, "nearest": one.nearest or None} for one in unused],
            "ineffective": [str(one) for one in ineffective],
        }
        write_document(options, document)
    else:
        _write(sys.stdout, [("the process", process), *flows.items()], lines)
        for one in unused:
            sys.stderr.write(f"mm2: {_unread(one, file)}\n")
        sys.stderr.writelines(f"mm2: {visible_line(str(one))}\n" for one in ineffective)
    return EXIT_NOT_WELL if unused else EXIT_WELL


def _write(out: TextIO, parts: Sequence[tuple[str, Sequence[SettingsSection]]], lines: dict[str, int]) -> None:
    rows = [
        (where if section.name == PROCESS else f"{where} {section.name}", section)
        for where, sections in parts
        for section in sections
    ]
    for index, (title, section) in enumerate(rows):
        out.write(f"{'' if not index else chr(10)}{title}\n")
        cells = [(f"  {one.key}", one.value, _origin(one, lines)) for one in _without_repeats(section.settings)]
        if cells:
            table(out, ("  KEY", "VALUE", "FROM"), cells, left=2)


def _without_repeats(settings: Sequence[Setting]) -> list[Setting]:
    """Show a key of the file that applies to all clients of a cluster once, as that of the cluster."""

    def rank(one: Setting) -> tuple[bool, int]:
        return ".cluster." not in one.key, len(one.key)

    shown: dict[str, Setting] = {}
    for one in settings:
        if one.origin and (one.origin not in shown or rank(one) < rank(shown[one.origin])):
            shown[one.origin] = one
    return [one for one in settings if not one.origin or shown[one.origin] is one]


def _origin(one: Setting, lines: dict[str, int]) -> str:
    if one.level is Level.DERIVED:
        return "derived"
    if one.level is Level.DEFAULT:
        return "default"
    overridden = [_place(key, lines.get(key)) for key in one.overrides]
    return _place(one.origin, one.line) + (f"; overrides {', '.join(overridden)}" if overridden else "")


def _place(key: str, line: int | None) -> str:
    return key if line is None else f"{key} (line {line})"


def _unread(one: UnreadKey, file: Path) -> str:
    hint = f" Did you mean {one.nearest}?" if one.nearest else ""
    return f"{file}, line {one.line}: unknown key {visible_line(one.key)}.{hint}"
