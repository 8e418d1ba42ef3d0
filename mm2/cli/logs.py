"""Log format and destination: readable on a terminal, otherwise one JSON object per line."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final, TextIO

import structlog
from structlog.typing import EventDict, Processor

from mm2.cli.common.terminal import visible
from mm2.config.files.provider_values import hide_known
from mm2.config.withheld_logs import WITHHELD, is_withheld

FORMATS: Final = ("auto", "console", "json")
LEVELS: Final = ("debug", "info", "warning", "error")

#: Libraries of which only warnings and errors are logged, unless another level is set through REST.
_QUIET: Final = ("pyspark", "asyncio")


_NUMBERS: Final = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "warn": logging.WARNING,
    "error": logging.ERROR,
    "exception": logging.ERROR,
    "critical": logging.CRITICAL,
    "fatal": logging.CRITICAL,
}


def _lenient(call: Callable[..., Any]) -> Callable[..., Any]:
    def tried(*arguments: Any) -> None:
        with contextlib.suppress(OSError, ValueError):  # ValueError: the stream is closed
            call(*arguments)

    return tried


class _NamedLogger(structlog.WriteLogger):
    """Writes lines; its level is that of the standard library's logger of the same name (``PUT /admin/loggers``)."""

    def __init__(self, out: TextIO, name: str) -> None:
        super().__init__(out)
        self._level = logging.getLogger(name)
        # A full disk must not stop replication.
        self._write, self._flush = _lenient(self._write), _lenient(self._flush)

    def wants(self, method: str) -> bool:
        """Whether lines of this method are written."""
        return self._level.isEnabledFor(_NUMBERS.get(method, logging.INFO))


def _only_enabled(logger: Any, method: str, event: EventDict) -> EventDict:
    if not logger.wants(method):
        raise structlog.DropEvent
    return event


def _changed(value: Any, change: Callable[[str], str]) -> Any:
    """The value with all text in it changed; objects that JSON lacks as their ``repr``, as the renderers show them."""
    if isinstance(value, str):
        return change(str(value))
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, Mapping):
        return {_changed(key, change): _changed(item, change) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_changed(item, change) for item in value]
    return change(repr(value))


def _without_provider_values(_logger: Any, _method: str, event: EventDict) -> EventDict:
    return {key: _changed(value, hide_known) for key, value in event.items()}


def _for_a_terminal(_logger: Any, _method: str, event: EventDict) -> EventDict:
    """Lines that continue a message are indented, so that none looks like a log line of its own."""
    return {key: _changed(value, lambda text: visible(text).replace("\n", "\n    ")) for key, value in event.items()}


class _VisibleJson:
    """Renders JSON without characters that a terminal executes."""

    def __init__(self) -> None:
        self._render = structlog.processors.JSONRenderer(ensure_ascii=False)

    def __call__(self, logger: Any, method: str, event: EventDict) -> str:
        line = self._render(logger, method, event)
        return visible(line if isinstance(line, str) else line.decode())


def add_log_options(parser: Any) -> None:
    """``--log-format`` and ``--log-level`` for a SourcedParser."""
    parser.add_argument(
        "--log-format",
        choices=FORMATS,
        default="auto",
        help="auto: console on a terminal, else json (default: auto)",
    )
    parser.add_argument("--log-level", choices=LEVELS, default="info", help="(default: info)")


def configure_logging(log_format: str = "auto", level: str = "info", *, stream: TextIO | None = None) -> None:
    """Set up structlog and the standard library's logging for the whole process.

    `log_format` is one of FORMATS (`auto`: console if `stream` is a terminal), `level` one of LEVELS; lines go to
    `stream` (default: standard error). Bound context (flow, connector, task) is part of every line.
    """
    out = sys.stderr if stream is None else stream
    shared, ending = configure_lines(log_format, out)
    number = logging.getLevelNamesMapping()[level.upper()]
    handler = logging.StreamHandler(out)
    # Also for loggers that are created later.
    handler.addFilter(lambda record: record.levelno >= logging.WARNING or not is_withheld(record.name))
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.add_logger_name],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *ending],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(number)
    for name in (*_QUIET, *WITHHELD):
        logging.getLogger(name).setLevel(max(number, logging.WARNING))
    logging.captureWarnings(capture=True)


def configure_lines(log_format: str, out: TextIO) -> tuple[list[Processor], list[Processor]]:
    """Set up structlog only; returns the processors that the standard library's logging may use, too."""
    console = log_format == "console" or (log_format == "auto" and out.isatty())
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.stdlib.PositionalArgumentsFormatter(),
        structlog.processors.StackInfoRenderer(),
        structlog.processors.TimeStamper(fmt="%Y-%m-%d %H:%M:%S" if console else "iso", utc=not console),
    ]
    # The plain traceback: other formatters print local variables, which may contain passwords.
    ending: list[Processor] = [structlog.processors.format_exc_info, _without_provider_values]
    if console:
        plain = structlog.dev.plain_traceback
        ending += [_for_a_terminal, structlog.dev.ConsoleRenderer(colors=out.isatty(), exception_formatter=plain)]
    else:
        ending.append(_VisibleJson())
    structlog.configure(
        processors=[_only_enabled, *shared, *ending],
        # Lines are filtered by the level of the logger's name, which may change while the program runs.
        wrapper_class=structlog.make_filtering_bound_logger(logging.NOTSET),
        logger_factory=lambda *names: _NamedLogger(out, str(names[0]) if names else ""),
        cache_logger_on_first_use=False,
    )
    return shared, ending
