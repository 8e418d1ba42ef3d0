"""The process's one Spark context: started in the background, started anew when its JVM is lost, always ended in time.

Nothing here trusts the JVM to answer. A call into it waits on a socket without end, so whatever must not hang is called
in a thread of its own that may be left behind, and a JVM that does not answer is killed, which frees them all.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Final, TypeVar

import structlog

from mm2.copy.driver.jvm import Jvm, SparkUnavailable, is_local, sentence
from mm2.kafka.backoff import Backoff

_CALL_TIMEOUT_S: Final = 5.0
_ANSWER_TIMEOUT_S: Final = 30.0
_LATE_S: Final = 20.0
_EXIT_S: Final = 3.0
_KILL_S: Final = 0.5
_RETRY: Final = Backoff(1_000, 60_000)
_LOOK_S: Final = 0.5
_PAUSE_S: Final = 0.05

T = TypeVar("T")


class Spark:
    """Thread-safe. ``props`` are all of Spark's settings, ``options`` more for Java; ``attempts`` 0 = tried for ever.

    ``on_up`` is handed each context before anybody else is.
    """

    def __init__(
        self,
        props: Mapping[str, str],
        options: Sequence[str] = (),
        *,
        attempts: int = 0,
        on_up: Callable[[Any], None] | None = None,
    ) -> None:
        self._props = props
        self._options = options
        self._attempts = attempts
        self._on_up = on_up
        self._changed = threading.Condition()
        self._stopping = threading.Event()
        self._starter: threading.Thread | None = None
        self._started_at = 0.0
        self._context: Any = None
        self._jvm: Jvm | None = None
        self._failure = ""
        self._application_id = ""
        self._ours = False  # what PySpark holds comes from us
        self._asked = False  # somebody waits for an answer to whether the JVM is still there
        self._log = structlog.get_logger(__name__)

    @property
    def trouble(self) -> str:
        """Why there is no context; empty when there is one or it has not been long."""
        with self._changed:
            if self._context is not None or self._starter is None:
                return ""
            late = time.monotonic() - self._started_at > _LATE_S
            return self._failure or (f"Spark ({self._props['spark.master']}) is still starting" if late else "")

    @property
    def is_up(self) -> bool:
        """Whether there is a context, and its JVM lives."""
        context, jvm = self._context, self._jvm
        return context is not None and (jvm is None or jvm.is_alive)

    @property
    def application_id(self) -> str:
        """Spark's name for what runs here; empty while there is no context. Asks nobody."""
        return self._application_id if self.is_up else ""

    @property
    def pid(self) -> int | None:
        """The JVM's process id while there is one."""
        jvm = self._jvm
        return None if jvm is None else jvm.pid

    def start(self) -> None:
        """Begin starting it; returns at once, idempotent."""
        with self._changed:
            if self._starter is None and not self._stopping.is_set():
                self._begin()

    def context(
        self,
        timeout_s: float | None = None,
        *,
        until: threading.Event | None = None,
        on_trouble: Callable[[str], None] | None = None,
    ) -> Any:
        """The SparkContext, waited for. Tells ``on_trouble`` why there is none yet, each time that changes.

        Raises SparkUnavailable when it is stopped, the time is over, or ``until`` is set before there is one.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        told = ""
        while not self._stopping.is_set():
            if until is not None and until.is_set():
                raise SparkUnavailable("nobody wants it any more")
            with self._changed:
                context, jvm = self._context, self._jvm
                if context is None:
                    if deadline is not None and time.monotonic() > deadline:
                        raise SparkUnavailable(self._failure or f"Spark was not up after {timeout_s:.0f} s")
                    if self._attempts and self._failure:
                        raise SparkUnavailable(self._failure)
                    self._changed.wait(_LOOK_S)
            if context is not None:
                if jvm is None or jvm.is_alive:
                    return context
                self.doubt()
                self._stopping.wait(_PAUSE_S)  # somebody else may be at it
            trouble = self.trouble
            if trouble != told and on_trouble is not None:
                told = trouble
                on_trouble(trouble)
        raise SparkUnavailable("the copy engine is stopped")

    def warm_up(self, context: Any) -> None:
        """Run a job that has nothing to do: it starts the Python workers' daemon and loads what a job takes."""
        from mm2.copy.executor.task import run  # noqa: PLC0415

        context.setJobGroup("mm2", "warm-up")
        context.parallelize([], 1).mapPartitions(run).collect()

    def cancel(self, group: str) -> None:
        """Have the jobs of a group cancelled; returns at once."""

        def cancel() -> None:
            context = self._context
            if context is None or self._stopping.is_set():
                return
            try:
                bounded(lambda: context.cancelJobGroup(group), _CALL_TIMEOUT_S)
            except Exception:  # noqa: BLE001  (whatever it is: is the JVM still there?)
                self.doubt()

        threading.Thread(target=cancel, name="spark-cancel", daemon=True).start()

    def doubt(self) -> None:
        """Something did not work: when the JVM is gone, or has stopped or does not answer for long, start another.

        Returns after the answer, 30 s later at most; at once when somebody else is waiting for it.
        """
        with self._changed:
            context, jvm = self._context, self._jvm
            if context is None or self._asked or self._stopping.is_set():
                return
            self._asked = True
        try:
            why = self._verdict(context, jvm)
        finally:
            with self._changed:
                self._asked = False
        if not why:
            return
        with self._changed:
            if self._context is not context or self._stopping.is_set():
                return
            self._context = self._jvm = None
            self._started_at = time.monotonic()
        self._log.error("Spark is lost, it is started again", reason=why)
        if jvm is not None:
            jvm.end(_KILL_S)
        _let_go(context)
        self._begin()

    def stop(self, timeout_s: float, *, exit_s: float = _EXIT_S) -> None:
        """End it, by force where it does not end by itself in time; ``exit_s`` is for the end of its JVM. Idempotent."""
        deadline = time.monotonic() + timeout_s
        with self._changed:
            self._stopping.set()
            context, self._context = self._context, None
            jvm, starter = self._jvm, self._starter
            self._changed.notify_all()
        if context is not None:
            with contextlib.suppress(Exception):  # a JVM that is gone, or does not answer, needs no stopping
                bounded(context.stop, max(0.1, deadline - time.monotonic() - _KILL_S))
        if jvm is not None:
            jvm.end(min(exit_s, deadline - time.monotonic()))
        if context is not None:
            _let_go(context)
        if starter is not None:
            starter.join(_KILL_S)

    def _begin(self) -> None:
        self._started_at = time.monotonic()
        self._failure = ""
        self._starter = threading.Thread(target=self._run, name="spark-start", daemon=True)
        self._starter.start()

    def _run(self) -> None:
        attempt = 0
        while not self._stopping.is_set():
            try:
                context = self._launch()
                application_id = str(context.applicationId)
                if self._on_up is not None:
                    self._on_up(context)
            except Exception as error:  # noqa: BLE001
                why = failure_of(error)
                self._give_up()
                if self._stopping.is_set():
                    return
                self._failure = f"Spark does not start: {why}"
                delay_s = _RETRY.delay_s(attempt)
                attempt += 1
                self._log.error("Spark does not start", error=why, retry_in_s=round(delay_s, 1))
                if attempt == self._attempts:
                    return
                self._stopping.wait(delay_s)
                continue
            seconds = round(time.monotonic() - self._started_at, 1)
            with self._changed:
                if not self._stopping.is_set():
                    self._context = context
                    self._application_id = application_id
                    self._failure = ""
                    self._changed.notify_all()
                    self._log.info("Spark is up", master=self._props["spark.master"], seconds=seconds)
            return

    def _launch(self) -> Any:
        # PySpark would start whatever "python3" is on the PATH for its workers, without our packages.
        python = self._props.get("spark.pyspark.python") or os.environ.get("PYSPARK_PYTHON") or sys.executable
        os.environ["PYSPARK_PYTHON"] = sys.executable if is_local(self._props) else python
        os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
        # It tells of every broken connection, with a traceback; what is lost is said here.
        logging.getLogger("py4j").setLevel(logging.CRITICAL)
        logging.getLogger().addFilter(_not_py4js)  # the same function twice is one filter
        warnings.filterwarnings("ignore", message="Unable to cleanly shutdown Spark JVM")
        jvm = Jvm(self._props, self._options)
        with self._changed:
            self._jvm = jvm
            if self._stopping.is_set():
                raise SparkUnavailable("the copy engine is stopped")
        from pyspark import SparkConf, SparkContext  # noqa: PLC0415  (a tenth of a second, while Java starts)

        gateway = jvm.gateway()
        if SparkContext._active_spark_context is not None:  # noqa: SLF001
            raise SparkUnavailable("another part of this process uses Spark, and PySpark knows one context only")
        self._ours = True
        conf = SparkConf(_jvm=gateway.jvm).setAll(list(self._props.items()))
        context = SparkContext(conf=conf, gateway=gateway)
        if not is_local(self._props):
            # A master that did not answer for a minute is no error here: the context is stopped a moment later.
            self._stopping.wait(_LOOK_S)
        if context._jsc.sc().isStopped():  # noqa: SLF001
            reasons = [line.partition("Reason: ")[2] for line in jvm.said() if "Reason: " in line]
            raise SparkUnavailable(sentence(reasons[-1]) if reasons else "it stopped at once")
        jvm.let_speak()
        if server := getattr(context, "_accumulatorServer", None):
            server.handle_error = lambda *_: None  # it prints a traceback when the JVM dies
        return context

    def _give_up(self) -> None:
        """End what an attempt to start has left."""
        with self._changed:
            jvm, self._jvm = self._jvm, None
        if jvm is not None:
            jvm.end(_KILL_S)
            self._log.debug("what Spark said", lines=jvm.said())
        if self._ours:
            _let_go(None)

    def _verdict(self, context: Any, jvm: Jvm | None) -> str:
        """Why there must be another JVM; empty when this one is well."""
        if jvm is not None and not jvm.is_alive:
            return "its JVM has died"
        try:
            stopped = bounded(lambda: context._jsc.sc().isStopped(), _ANSWER_TIMEOUT_S)  # noqa: SLF001
        except TimeoutError:
            return f"its JVM has not answered for {_ANSWER_TIMEOUT_S:.0f} s"
        except Exception:  # noqa: BLE001
            return "its JVM has died"
        return "it has stopped" if stopped else ""


def bounded(call: Callable[[], T], timeout_s: float) -> T:
    """The result of a call that may hang; TimeoutError when it takes longer, and it is left to itself."""
    promise: Future[T] = Future()

    def run() -> None:
        try:
            promise.set_result(call())
        except BaseException as error:  # noqa: BLE001  (raised where the result is wanted)
            promise.set_exception(error)

    threading.Thread(target=run, name="spark-call", daemon=True).start()
    return promise.result(timeout_s)


def _not_py4js(record: logging.LogRecord) -> bool:
    """Whether a line of the root logger is somebody else's."""
    return record.msg != "Exception while sending command."


def failure_of(error: BaseException) -> str:
    """What an error says, without the call that failed and the trace. Py4j asks the JVM for them, so while it lives."""
    lines = str(error).strip().splitlines()
    # "An error occurred while calling o1.x.", then ": java.lang.A: b.C: what it is about", then the trace
    told = next((line[2:] for line in lines if line.startswith(": ")), lines[0] if lines else "")
    return sentence(told) or type(error).__name__


def _let_go(context: Any) -> None:
    """Have PySpark forget its JVM. It keeps it in class attributes and has no public way to let go of a dead one."""
    from pyspark import SparkContext  # noqa: PLC0415

    server = getattr(context, "_accumulatorServer", None)
    if server is not None:
        context._accumulatorServer = None  # noqa: SLF001
        with contextlib.suppress(Exception):
            bounded(server.shutdown, _CALL_TIMEOUT_S)
    gateway = SparkContext._gateway  # noqa: SLF001
    if gateway is not None:
        with contextlib.suppress(Exception):
            bounded(gateway.shutdown, _KILL_S)
    for name in ("_gateway", "_jvm", "_active_spark_context"):
        setattr(SparkContext, name, None)
