"""Spark's Python workers among our child processes, for tests that kill or freeze them."""

from __future__ import annotations

import contextlib

import psutil


def workers() -> list[psutil.Process]:
    """The forked children of Spark's Python daemon."""

    def is_daemon(process: psutil.Process | None) -> bool:
        with contextlib.suppress(psutil.Error):  # ended meanwhile
            return process is not None and "mm2.copy.executor.daemon" in process.cmdline()
        return False

    return [
        process
        for process in psutil.Process().children(recursive=True)
        if is_daemon(process) and is_daemon(process.parent())
    ]
