"""Replication in a program that has a SparkSession, such as a notebook: ``mm2.spark.start(spark, "mm2.properties")``.

The session is neither ended nor replaced. Its executors need this package, as any other Python library of a Spark job.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import structlog

from mm2.cli.connect_mirror_maker import STOP_S, set_up
from mm2.cli.logs import configure_lines
from mm2.cli.served import Served
from mm2.mirror.process.config_file import ConfigFile
from mm2.mirror.process.maker import FlowFailed, MirrorMaker

__all__ = ["Replication", "start"]


def start(spark: Any, file: str | Path, clusters: Sequence[str] | None = None) -> Replication:
    """Start the flows of MirrorMaker's properties ``file`` to these clusters (None: all) on ``spark``, a SparkSession or SparkContext.

    Returns at once. A log line names each ``spark.*`` key of the file that comes too late for the session. Raises
    `mm2.config.files.properties.UnreadableFile` and `mm2.config.configdef.ConfigException` for the file,
    `mm2.connect.api.ConnectError` for a target that cannot be used.
    """
    if not structlog.is_configured():  # its default prints local variables with tracebacks, which may contain passwords
        configure_lines("auto", sys.stderr)
        logging.getLogger("mm2").setLevel(logging.INFO)
    context = getattr(spark, "sparkContext", spark)
    stopping = threading.Event()
    watched = ConfigFile(Path(file), threading.Event())
    maker, served = set_up(watched, clusters, stopping, lambda _settings: context)
    return Replication(maker, served, watched, stopping)


class Replication:
    """The running flows. Changes of the file are applied as by connect-mirror-maker."""

    def __init__(self, maker: MirrorMaker, served: Served, file: ConfigFile, stopping: threading.Event) -> None:
        self._maker = maker
        self._served = served
        self._file = file
        self._stopping = stopping
        self._log = structlog.get_logger(__name__)
        #: Why the flows do not run any more; empty while they do.
        self.failure = ""
        try:
            maker.start()
            served.start()
        except BaseException:
            self.stop()
            raise
        self._thread = threading.Thread(target=self._run, name="mm2", daemon=True)
        self._thread.start()

    def status(self) -> dict[str, Any]:
        """The status of the connectors and tasks of each flow, JSON-able."""
        return self._maker.status()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the flows have ended, because of `stop` or a failure; False after the timeout."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def add_listener(self, listener: Any) -> None:
        """Call this `pyspark.sql.streaming.StreamingQueryListener` for each task that starts and ends, and each micro-batch that ends."""
        self._maker.engine.queries.listen(listener)

    def remove_listener(self, listener: Any) -> None:
        """Do not call this listener any more."""
        self._maker.engine.queries.remove(listener)

    def stop(self) -> None:
        """Stop the flows within 15 seconds: records in flight are acknowledged and committed. Idempotent."""
        self._stopping.set()
        self._served.stop()
        self._maker.stop(STOP_S)

    def _run(self) -> None:
        try:
            self._maker.wait(self._stopping, self._file)
        except FlowFailed as error:
            self.failure = str(error)
            self._log.error("%s", error)
