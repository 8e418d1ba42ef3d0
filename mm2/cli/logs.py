"""Where log lines go and what they look like: readable on a terminal, one JSON object per line otherwise."""

from __future__ import annotations

import logging
import sys
from typing import Final, TextIO

import structlog
from structlog.typing import Processor

FORMATS: Final = ("auto", "console", "json")
LEVELS: Final = ("debug", "info", "warning", "error")

#: Libraries whose own lines are only worth reading when something is wrong.
_QUIET: Final = ("kafka", "py4j", "pyspark", "httpx", "httpcore", "asyncio")


def configure_logging(log_format: str = "auto", level: str = "info", *, stream: TextIO | None = None) -> None:
    """Set up structlog and the standard library's logging for the whole process.

    `log_format` is one of FORMATS (`auto`: console if `stream` is a terminal), `level` one of LEVELS; lines go to
    `stream` (default: standard error). Bound context (flow, connector, task) is part of every line.
    """
    out = sys.stderr if stream is None else stream
    console = log_format == "console" or (log_format == "auto" and out.isatty())
    number = logging.getLevelNamesMapping()[level.upper()]
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.stdlib.PositionalArgumentsFormatter(),
        structlog.processors.StackInfoRenderer(),
        structlog.processors.TimeStamper(fmt="%Y-%m-%d %H:%M:%S" if console else "iso", utc=not console),
    ]
    ending: list[Processor]
    if console:
        # The plain traceback: the pretty ones print local variables, and with them passwords.
        renderer = structlog.dev.ConsoleRenderer(colors=out.isatty(), exception_formatter=structlog.dev.plain_traceback)
        ending = [renderer]
    else:
        ending = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(ensure_ascii=False)]
    structlog.configure(
        processors=[*shared, *ending],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.WriteLoggerFactory(file=out),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(out)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.add_logger_name],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *ending],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(number)
    for name in _QUIET:
        logging.getLogger(name).setLevel(max(number, logging.WARNING))
    logging.captureWarnings(capture=True)
