"""`mm2 version`: the versions of mm2, of the Kafka protocol it implements, and of its dependencies."""

from __future__ import annotations

import platform
import re
import sys
from importlib import metadata
from typing import Any, Final

from mm2 import KAFKA_VERSION, __version__
from mm2.cli.common.flow import EXIT_WELL
from mm2.cli.common.output import add_output, write_document
from mm2.cli.common.verbs import examples

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def versions() -> dict[str, Any]:
    """The installed versions.

    Keys: ``mm2``, ``kafka`` (whose behaviour and protocol it implements), ``spark``, ``python``, ``platform``, and
    ``dependencies`` by name, None for a missing one.
    """
    needed = sorted({_NAME.match(line)[0] for line in metadata.requires("mm2") or () if "extra ==" not in line})  # type: ignore[index]
    dependencies = {name: _version(name) for name in needed}
    return {
        "mm2": __version__,
        "kafka": KAFKA_VERSION,
        "spark": dependencies.get("pyspark"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "dependencies": dependencies,
    }


def add(verbs: Any) -> None:
    """Declare the command and its arguments."""
    parser = verbs.add_parser(
        "version",
        help="versions of this program, Kafka's protocol, Spark, Python and dependencies",
        description="The version, the Kafka version that it is compatible with, and the versions of Spark, Python and all"
        " dependencies, for error reports. Exit code: 0.",
        epilog=examples(("for an error report", "mm2 version"), ("for a script", "mm2 version --json | jq -r .mm2")),
    )
    add_output(parser)
    parser.set_defaults(run=run)


def run(options: Any) -> int:
    """Run the command; returns the exit code."""
    shown = versions()
    if options.json:
        write_document(options, shown, ascii_only=True)
        return EXIT_WELL
    sys.stdout.write(
        f"mm2 {shown['mm2']}, compatible with Kafka {shown['kafka']}; Spark {shown['spark'] or 'missing'}, "
        f"Python {shown['python']}, {shown['platform']}\n"
    )
    for name, version in shown["dependencies"].items():
        sys.stdout.write(f"  {name} {version or 'missing'}\n")
    return EXIT_WELL


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
