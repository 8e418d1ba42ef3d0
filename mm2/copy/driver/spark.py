"""The Spark context of the process: started in the background, recreated when its JVM is lost, and always stopped in
time.

A call into the JVM may never return, because it waits on a socket without a deadline. So calls that must not hang run
in a thread that can be abandoned, and a JVM that does not respond is killed, which ends these threads.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
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
from mm2.reasons import SparkDown, SparkDownCode

_CALL_TIMEOUT_S: Final = 5.0
_ANSWER_TIMEOUT_S: Final = 30.0
_DIED: Final = "its JVM has died"
_LATE_S: Final = 20.0
_EXIT_S: Final = 3.0
_KILL_S: Final = 0.5
_RETRY: Final = Backoff(1_000, 60_000)
_POLL_S: Final = 0.5
_PAUSE_S: Final = 0.05
_CONTINUED: Final = ("Traceback (most recent call last):", "Error from python worker:", "SparkException:")
_PYTHON_ERROR: Final = re.compile(r"^[\w.]+(?:Error|Exception): |\(ModuleNotFoundError: ")
_NO_LIMIT: Final = (1 << 31) - 1

T = TypeVar("T")


class Spark:
    """Thread-safe. ``props`` are all Spark settings, ``options`` additional Java options; ``attempts`` 0 = unlimited.

    ``on_up`` is called with each new context before it is used.
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
        self._failure = ""  # of the last start
        self._lost: SparkDown | None = None  # until it is up again
        self._application_id = ""
        self._ours = False  # PySpark's gateway was created here
        self._checking = False  # a thread is checking whether the JVM responds
        self._log = structlog.get_logger(__name__)

    @property
    def down(self) -> SparkDown | None:
        """Why there is no context; None when there is one, or when the first start has not taken long."""
        with self._changed:
            if self._context is not None or self._starter is None:
                return None
            if self._failure:
                return SparkDown(SparkDownCode.START_FAILED, self._failure)
            if time.monotonic() - self._started_at > _LATE_S:
                return SparkDown(SparkDownCode.STARTING, f"Spark ({self._props['spark.master']}) is still starting")
            return self._lost

    @property
    def is_up(self) -> bool:
        """Whether there is a context, and its JVM is alive."""
        context, jvm = self._context, self._jvm
        return context is not None and (jvm is None or jvm.is_alive)

    @property
    def application_id(self) -> str:
        """Spark's application id; empty while there is no context. Does not call the JVM."""
        return self._application_id if self.is_up else ""

    @property
    def pid(self) -> int | None:
        """The JVM's process id, if there is one."""
        jvm = self._jvm
        return None if jvm is None else jvm.pid

    def start(self) -> None:
        """Start in the background. Idempotent."""
        with self._changed:
            if self._starter is None and not self._stopping.is_set():
                self._begin()

    def context(
        self,
        timeout_s: float | None = None,
        *,
        until: threading.Event | None = None,
        on_wait: Callable[[str], None] | None = None,
    ) -> Any:
        """Wait for the SparkContext. ``on_wait`` is called with the reason of the wait each time it changes.

        Raises SparkUnavailable when Spark is stopped, on timeout, and when ``until`` is set before.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        reported = ""
        while not self._stopping.is_set():
            if until is not None and until.is_set():
                raise SparkUnavailable("the request was cancelled")
            with self._changed:
                context, jvm = self._context, self._jvm
                if context is None:
                    if deadline is not None and time.monotonic() > deadline:
                        raise SparkUnavailable(self._failure or f"Spark did not start within {timeout_s:.0f} s")
                    if self._attempts and self._failure:
                        raise SparkUnavailable(self._failure)
                    self._changed.wait(_POLL_S)
            if context is not None:
                if jvm is None or jvm.is_alive:
                    return context
                self.check_jvm()
                self._stopping.wait(_PAUSE_S)  # another thread may be replacing it
            unavailable_reason = str(self.down or "")
            if unavailable_reason != reported and on_wait is not None:
                reported = unavailable_reason
                on_wait(unavailable_reason)
        raise SparkUnavailable("the copy engine is stopped")

    def cancel(self, group: str) -> None:
        """Cancel the jobs of a group; returns immediately."""
        context = self._context
        if context is not None and not self._stopping.is_set():
            cancel_in_background(context, group, self.check_jvm)

    def check_jvm(self) -> None:
        """Check the JVM after a failed call. If it has ended, stopped or does not respond, start another one.

        Returns within 30 s; immediately when another thread is already checking.
        """
        with self._changed:
            context, jvm = self._context, self._jvm
            if context is None or self._checking or self._stopping.is_set():
                return
            self._checking = True
        try:
            is_dead = jvm is not None and not jvm.is_alive
            why = SparkDown(SparkDownCode.JVM_DIED, _DIED) if is_dead else context_failure(context)
        finally:
            with self._changed:
                self._checking = False
        if why is not None:
            self._replace(context, why)

    def check_application(self, context: Any) -> None:
        """Ask the master of a standalone cluster, which has no executor for this application, whether it knows the application.

        A master that was restarted without recovery does not, and does not say so: workers end the executors, and no new one is
        started. Then start another context. Returns within 30 s. Raises what py4j raises if the JVM does not respond.
        """
        from py4j.protocol import Py4JJavaError  # noqa: PLC0415  (imported together with Spark)

        if not self._props["spark.master"].startswith("spark://"):
            return
        spark = context._jsc.sc()  # noqa: SLF001
        none = context._jvm.PythonUtils.toScalaMap({})  # noqa: SLF001
        try:
            # Without a limit, as at the start.
            known = bounded(lambda: spark.requestTotalExecutors(_NO_LIMIT, 0, none), _ANSWER_TIMEOUT_S)
        except Py4JJavaError:
            known = False  # its connection to the master has ended, and Spark does not connect to a restarted one
        if not known:
            why = "its master does not know the application any more, as after a restart without spark.deploy.recoveryMode"
            self._replace(context, SparkDown(SparkDownCode.APPLICATION_ENDED, why))

    def stop(self, timeout_s: float, *, exit_s: float = _EXIT_S) -> None:
        """Stop, by force after the timeout; ``exit_s`` is for the exit of the JVM. Idempotent."""
        deadline = time.monotonic() + timeout_s
        with self._changed:
            self._stopping.set()
            context, self._context = self._context, None
            jvm, starter = self._jvm, self._starter
            self._changed.notify_all()
        if context is not None:
            with contextlib.suppress(Exception):  # the JVM has ended or does not respond
                bounded(lambda: _stop(context), max(0.1, deadline - time.monotonic() - _KILL_S))
        if jvm is not None:
            jvm.end(min(exit_s, deadline - time.monotonic()))
        if context is not None:
            _reset_pyspark(context)
        if starter is not None:
            starter.join(_KILL_S)

    def _replace(self, context: Any, why: SparkDown) -> None:
        """Kill the JVM and start another one, unless another thread has."""
        with self._changed:
            if self._context is not context or self._stopping.is_set():
                return
            jvm = self._jvm
            self._context = self._jvm = None
            self._started_at = time.monotonic()
            self._lost = SparkDown(why.code, f"Spark is restarting, because {why}")
        self._log.error("Spark lost, restarting", reason=str(why), code=str(why.code))
        if jvm is not None:
            jvm.end(_KILL_S)
        _reset_pyspark(context)
        self._begin()

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
                    self._lost = None
                    self._changed.notify_all()
                    self._log.info("Spark is up", master=self._props["spark.master"], seconds=seconds)
            return

    def _launch(self) -> Any:
        # PySpark would start whatever "python3" is on the PATH for its workers, without our packages.
        python = self._props.get("spark.pyspark.python") or os.environ.get("PYSPARK_PYTHON") or sys.executable
        os.environ["PYSPARK_PYTHON"] = sys.executable if is_local(self._props) else python
        os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
        quiet_py4j()
        jvm = Jvm(self._props, self._options)
        with self._changed:
            self._jvm = jvm
            if self._stopping.is_set():
                raise SparkUnavailable("the copy engine is stopped")
        from pyspark import SparkConf, SparkContext  # noqa: PLC0415  (a tenth of a second, while Java starts)

        gateway = jvm.gateway()
        if SparkContext._active_spark_context is not None:  # noqa: SLF001
            raise SparkUnavailable(
                "another part of this process uses Spark, and PySpark supports one context per process"
            )
        self._ours = True
        conf = SparkConf(_jvm=gateway.jvm).setAll(list({**self._props, **jvm.settings}.items()))
        context = SparkContext(conf=conf, gateway=gateway)
        if not is_local(self._props):
            # If the master does not respond for a minute, no error is raised: the context is stopped a moment later.
            self._stopping.wait(_POLL_S)
        if context._jsc.sc().isStopped():  # noqa: SLF001
            reasons = [line.partition("Reason: ")[2] for line in jvm.stderr_lines() if "Reason: " in line]
            raise SparkUnavailable(sentence(reasons[-1]) if reasons else "it stopped immediately")
        jvm.forward_stderr()
        if server := getattr(context, "_accumulatorServer", None):
            server.handle_error = lambda *_: None  # it prints a traceback when the JVM dies
        return context

    def _give_up(self) -> None:
        """Clean up after a failed start."""
        with self._changed:
            jvm, self._jvm = self._jvm, None
        if jvm is not None:
            jvm.end(_KILL_S)
            self._log.debug("output of Spark", lines=jvm.stderr_lines())
        if self._ours:
            _reset_pyspark(None)


def context_failure(context: Any) -> SparkDown | None:
    """Why a context cannot be used any more; None when its JVM is healthy. Returns within 30 s."""
    try:
        stopped = bounded(lambda: context._jsc.sc().isStopped(), _ANSWER_TIMEOUT_S)  # noqa: SLF001
    except TimeoutError:
        return SparkDown(SparkDownCode.JVM_HANGS, f"its JVM has not responded for {_ANSWER_TIMEOUT_S:.0f} s")
    except Exception:  # noqa: BLE001  (the JVM has died, or PySpark has dropped it)
        return SparkDown(SparkDownCode.JVM_DIED, _DIED)
    return SparkDown(SparkDownCode.APPLICATION_ENDED, "it has stopped") if stopped else None


def quiet_py4j() -> None:
    """py4j logs a traceback for every broken connection; a lost JVM is logged here, once."""
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    logging.getLogger().addFilter(_is_not_py4j)  # adding the same function twice has no effect
    warnings.filterwarnings("ignore", message="Unable to cleanly shutdown Spark JVM")


def warm_up(context: Any) -> None:
    """Run an empty job: it starts the Python workers' daemon and loads the classes that a job needs."""
    from mm2.copy.executor.task import run  # noqa: PLC0415  (imported together with Spark)

    context.setJobGroup("mm2", "warm-up")
    context.parallelize([], 1).mapPartitions(run).collect()


def cancel_in_background(context: Any, group: str, failed: Callable[[], None]) -> None:
    """Cancel the jobs of a group; ``failed`` is called on any error."""

    def cancel() -> None:
        try:
            bounded(lambda: context.cancelJobGroup(group), _CALL_TIMEOUT_S)
        except Exception:  # noqa: BLE001
            failed()

    threading.Thread(target=cancel, name="spark-cancel", daemon=True).start()


def bounded(call: Callable[[], T], timeout_s: float) -> T:
    """The result of a call that may hang. Raises TimeoutError after ``timeout_s`` and abandons the call."""
    promise: Future[T] = Future()

    def run() -> None:
        try:
            promise.set_result(call())
        except BaseException as error:  # noqa: BLE001  (raised by `result`)
            promise.set_exception(error)

    threading.Thread(target=run, name="spark-call", daemon=True).start()
    return promise.result(timeout_s)


def _is_not_py4j(record: logging.LogRecord) -> bool:
    """Whether a line of the root logger is not one of py4j's."""
    return record.msg != "Exception while sending command."


def failure_of(error: BaseException) -> str:
    """The message of an error, without the failed call and the stack trace. Py4j reads them from the JVM, so call it
    while the JVM is alive.
    """
    lines = str(error).strip().splitlines()
    # "An error occurred while calling o1.x.", then ": java.lang.A: b.C: message", then the stack trace
    message = next((line[2:] for line in lines if line.startswith(": ")), lines[0] if lines else "")
    if message.rstrip().endswith(_CONTINUED):
        # Python's own error stands below: after its stack trace, or after the name of the interpreter.
        message = next((line.strip() for line in lines if _PYTHON_ERROR.search(line)), message)
    return sentence(message) or type(error).__name__


def _stop(context: Any) -> None:
    """Stop Spark, also while its workers are still being warmed up: that they end is no error then."""
    context.setLogLevel("OFF")
    context.stop()


def _reset_pyspark(context: Any) -> None:
    """Remove the JVM from PySpark's class attributes. PySpark has no public API to drop a dead JVM."""
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
