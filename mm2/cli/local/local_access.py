"""`mm2 token` and `mm2 ui`: access to a process of this user on this machine, without a password."""

from __future__ import annotations

import html
import sys
import tempfile
import time
import webbrowser
from pathlib import Path
from typing import Any, Final

import httpx

from mm2.cli.common.flow import EXIT_WELL, FILE_VARIABLE, CommandError
from mm2.cli.common.rest import ask, tls_of
from mm2.cli.common.verbs import examples
from mm2.connect.rest.local_processes import Process, folder_path, processes, token_of
from mm2.kafka.auth.bounded_http import one_line

#: A browser has read the file that leads it to the link after this time.
_OPENING_S: Final = 5.0


def add(verbs: Any) -> None:
    """Declare the two commands."""
    token = verbs.add_parser(
        "token",
        help="the token for REST requests to a process of yours on this machine",
        description="Prints the token that gives access, as an administrator, to the REST interface of a process of this user on "
        "this machine. A process has another token after each start. Keep it secret. Exit code: 0, or 2 if the command failed.",
        epilog=examples(
            ("print it", "mm2 token"),
            ("of one of several processes with the file", "mm2 token mm2.properties --pid 4711"),
        ),
    )
    _add_process(token)
    token.set_defaults(run=lambda options: _print(token_for(chosen(options.config, options.pid))))
    ui = verbs.add_parser(
        "ui",
        help="a link that opens the dashboard of a process of yours on this machine",
        description="Prints a link that logs a browser in to the dashboard, once and within one minute, as an administrator. "
        "Exit code: 0, or 2 if the command failed.",
        epilog=examples(
            ("print the link", "mm2 ui"),
            ("open it in the browser of this machine", "mm2 ui mm2.properties --open"),
        ),
    )
    _add_process(ui)
    ui.add_argument("--open", action="store_true", help="open the link in a browser instead")
    ui.set_defaults(run=_ui)


def _add_process(parser: Any) -> None:
    parser.takes_file = True
    parser.add_argument(
        "config",
        metavar="FILE",
        type=Path,
        nargs="?",
        help=f"the properties file of the process (default: that in {FILE_VARIABLE}, else the only process)",
    )
    parser.add_argument("--pid", metavar="N", type=int, help="the process id, if several processes run with the file")


def chosen(file: Path | None, pid: int | None = None) -> Process:
    """The process that runs with this file. Raises CommandError, UntrustedFolder."""
    all_of_them = processes()
    name = "" if file is None else str(file.absolute())
    found = [one for one in all_of_them if name in {"", one.file} and pid in {None, one.pid}]
    if not found:
        with_file = f" runs with {file}" if file is not None else " has a REST interface"
        running = ", ".join(f"{one.pid} ({one.file or one.url})" for one in all_of_them) or "none"
        raise CommandError(
            f"No process of yours on this machine{with_file}; running: {running}. Processes are registered in "
            f"{folder_path()}: run the command as the user of the process, with the same HOME and XDG_STATE_HOME."
        )
    if len(found) > 1:
        raise CommandError(
            f"Several processes match: select one with --pid ({', '.join(str(one.pid) for one in found)})."
        )
    return found[0]


def token_for(process: Process) -> str:
    """The token of a process. Raises CommandError, UntrustedFolder."""
    token = token_of(process)
    if token is None:
        raise CommandError(f"Process {process.pid} could not write its token file; its log has the reason.")
    return token


def login_link(process: Process) -> str:
    """A link that logs a browser in, once. Raises CommandError, ConfigException, UntrustedFolder."""
    url = f"{process.url.rstrip('/')}/ui/code"
    headers = {"Authorization": f"Bearer {token_for(process)}"}
    try:
        answer = ask("POST", url, headers, tls_of(process))
    except httpx.HTTPError as error:
        raise CommandError(f"No response from {url}: {str(error).rstrip('.') or type(error).__name__}.") from error
    if answer.status == httpx.codes.NOT_FOUND:
        raise CommandError(f"{process.url} has no dashboard: it belongs to a Connect worker.")
    document = answer.document()
    if not (answer.is_success and isinstance(document, dict) and isinstance(document.get("path"), str)):
        raise CommandError(f"{url} answers {answer.status}: {one_line(answer.content.decode('utf-8', 'replace'))}")
    return f"{process.url.rstrip('/')}{document['path']}"


def _ui(options: Any) -> int:
    link = login_link(chosen(options.config, options.pid))
    if not options.open:
        return _print(link)
    # Other users see the command line of the browser, so the link is in a file that only this user can read.
    with tempfile.TemporaryDirectory(prefix="mm2-ui-") as folder:
        page = Path(folder) / "open.html"
        page.write_text(f'<!doctype html><meta http-equiv="refresh" content="0; url={html.escape(link)}">')
        if not webbrowser.open(page.as_uri()):
            raise CommandError(
                "There is no browser on this machine: run the command without --open, and open the link."
            )
        time.sleep(_OPENING_S)
    return EXIT_WELL


def _print(text: str) -> int:
    sys.stdout.write(f"{text}\n")
    return EXIT_WELL
