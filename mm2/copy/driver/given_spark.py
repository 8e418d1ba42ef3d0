"""A Spark context that the process was given: by `spark-submit`, or by a program that has a SparkSession.

Its JVM belongs to others, so it is never replaced.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final

from mm2.copy.driver.jvm import SparkUnavailable
from mm2.copy.driver.settings import ALWAYS, DEFAULTS
from mm2.copy.driver.spark import cancel_in_background, context_failure, quiet_py4j
from mm2.reasons import SparkDown, SparkDownCode

#: spark-submit tells its Python program by this variable where the gateway of its JVM is.
_SUBMITTED: Final = "PYSPARK_GATEWAY_PORT"


def submitted_context(user: Mapping[str, str]) -> Any:
    """The SparkContext of a process that `spark-submit` has started; None in others. ``user`` are the ``spark.*`` keys of the file: they
    precede what the command line and spark-defaults.conf state, as everywhere in Spark.
    """
    if _SUBMITTED not in os.environ:
        return None
    from pyspark import SparkConf, SparkContext  # noqa: PLC0415  (a tenth of a second, which other processes do not need)

    quiet_py4j()
    conf = SparkConf()
    for key, value in DEFAULTS.items():
        conf.setIfMissing(key, value)
    return SparkContext(conf=conf.setAll(list({**user, **ALWAYS}.items())))


class GivenSpark:
    """As `mm2.copy.driver.spark.Spark`. Thread-safe. ``on_up`` is called once, with the context."""

    def __init__(self, context: Any, *, on_up: Callable[[Any], None]) -> None:
        self._context = context
        self._on_up = on_up
        self._lock = threading.Lock()
        self._is_started = False
        self._stopping = threading.Event()
        self._lost: SparkDown | None = None
        self.application_id = str(context.applicationId)
        self.pid: int | None = None

    @property
    def down(self) -> SparkDown | None:
        """That the context has ended, or None."""
        return self._lost

    @property
    def is_up(self) -> bool:
        """Whether the context is not known to have ended."""
        return self._is_started and self._lost is None and not self._stopping.is_set()

    def start(self) -> None:
        """Use the context. Idempotent. Raises OSError."""
        with self._lock:
            if not self._is_started:
                self._on_up(self._context)
                self._is_started = True

    def context(
        self,
        timeout_s: float | None = None,
        *,
        until: threading.Event | None = None,
        on_wait: Callable[[str], None] | None = None,
    ) -> Any:
        """The context. If it has ended, no other one will come: the call lasts until ``until`` is set, or for ``timeout_s``, and raises
        SparkUnavailable.
        """
        if self.is_up:
            return self._context
        why = str(self._lost or "the copy engine is stopped")
        if on_wait is not None:
            on_wait(why)
        if until is not None and not self._stopping.is_set():
            until.wait(timeout_s)
        raise SparkUnavailable(why)

    def cancel(self, group: str) -> None:
        """Cancel the jobs of a group; returns immediately."""
        if self.is_up:
            cancel_in_background(self._context, group, self.check_jvm)

    def check_jvm(self) -> None:
        """Find out whether the context has ended, after a failed call. Returns within 30 s."""
        if self._lost is not None or self._stopping.is_set():
            return
        why = context_failure(self._context)
        if why is not None and why.code != SparkDownCode.JVM_HANGS:  # that may respond again
            self._lost = SparkDown(SparkDownCode.APPLICATION_ENDED, "the Spark context of this process has ended")

    def check_application(self, context: Any) -> None:
        """Nothing: another context cannot be started."""

    def stop(self, timeout_s: float) -> None:
        """End the use of the context. Idempotent."""
        self._stopping.set()
