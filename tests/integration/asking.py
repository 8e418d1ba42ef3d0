"""Run `mm2` in this process and restore the logging configuration afterwards."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import structlog

from mm2.cli.mm2 import main


def asked(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str, str]:
    """Exit code, standard output, standard error."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    capsys.readouterr()
    try:
        code = main([str(argument) for argument in arguments])
    finally:
        structlog.reset_defaults()
        root.handlers[:] = handlers
        root.setLevel(level)
        logging.captureWarnings(capture=False)
    output = capsys.readouterr()
    return code, output.out, output.err
