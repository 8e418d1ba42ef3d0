"""Reads a file that a configuration names, which may be anything that can be opened."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path


class UnusableFile(Exception):
    """The file is not read; the message is the reason, without its subject."""


def read_regular_file(
    path: str | Path, most_bytes: int, check: Callable[[int], object] = lambda _descriptor: None
) -> bytes:
    """The content of a regular file of at most so many bytes; ``check`` is called with the descriptor before anything is read.

    Raises UnusableFile, OSError, ValueError for a path with a NUL, and what ``check`` raises.
    """
    # Not blocking: a named pipe without a writer would block the process.
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise UnusableFile("is not a regular file")
        check(file.fileno())
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise UnusableFile(f"is larger than {most_bytes} bytes")
    return content


def read_text_file(path: str | Path, most_bytes: int) -> str:
    """The text of a regular file in UTF-8, without white space around it.

    Raises UnusableFile, also if it cannot be opened or has no text, UnicodeDecodeError, and ValueError for a path with a NUL.
    """
    try:
        text = str(read_regular_file(path, most_bytes), "utf-8").strip()
    except OSError as error:
        raise UnusableFile(f"cannot be read: {error.strerror}") from error
    if not text:
        raise UnusableFile("is empty")
    return text
