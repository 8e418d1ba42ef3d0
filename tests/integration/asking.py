"""Run `mm2` in this process and restore the logging configuration afterwards; the input of one on a terminal."""

from __future__ import annotations

import logging
import os
import pty
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import structlog

from mm2.cli.mm2 import main


@contextmanager
def terminal(answer: str) -> Iterator[int]:
    """A terminal on which this line was typed: the descriptor for the standard input of a process."""
    ours, theirs = pty.openpty()
    try:
        os.write(ours, f"{answer}\n".encode())
        yield theirs
    finally:
        os.close(ours)
        os.close(theirs)


def asked(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str, str]:
    """Exit code, standard output, standard error."""
    root = logging.getLogger()
    handlers, level, configuration = list(root.handlers), root.level, structlog.get_config()
    capsys.readouterr()
    try:
        code = main([str(argument) for argument in arguments])
    finally:
        structlog.configure(**configuration)
        root.handlers[:] = handlers
        root.setLevel(level)
        logging.captureWarnings(capture=False)
    output = capsys.readouterr()
    return code, output.out, output.err
