"""Starts and stops the JVM of Spark's driver.

PySpark starts it through spark-submit: two shell scripts and a JVM that computes the command line of the second one.
In local mode this module computes the command line itself. This saves a second, and the warning about incubator
modules (of `jdk.incubator.vector`, used only by Spark's machine learning). On a cluster spark-submit is used, because
it handles spark-env.sh, YARN, Kubernetes and packages.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import javaproperties

MINIMUM_JAVA: Final = 17
"""Of Spark 4."""

_START_TIMEOUT_S: Final = 90.0
_POLL_S: Final = 0.005
_STDERR_LINES_KEPT: Final = 500
#: The path of a UNIX socket has at most 107 bytes, and Spark's names 42.
_SOCKET_FOLDER_BYTES: Final = 64
#: Spark can log the same error thousands of times a second.
_STDERR_LINES_A_MINUTE: Final = 200
_INCUBATOR: Final = b"WARNING: Using incubator modules"

_OPENED: Final = (
    *(f"java.base/java.{name}" for name in ("lang", "lang.invoke", "lang.reflect", "io", "net", "nio", "util")),
    *("java.base/java.util.concurrent", "java.base/java.util.concurrent.atomic"),
    *("java.base/jdk.internal.ref", "java.base/sun.nio.ch", "java.base/sun.nio.cs", "java.base/sun.security.action"),
    *("java.base/sun.util.calendar", "java.security.jgss/sun.security.krb5"),
)
#: org.apache.spark.launcher.JavaModuleOptions of Spark 4.3, without the incubator module.
MODULE_OPTIONS: Final = (
    "-XX:+IgnoreUnrecognizedVMOptions",
    *(f"--add-opens={package}=ALL-UNNAMED" for package in _OPENED),
    "-Dio.netty.tryReflectionSetAccessible=true",
    "-Dio.netty.allocator.type=pooled",
    "-Dio.netty.handler.ssl.defaultEndpointVerificationAlgorithm=NONE",
    "--sun-misc-unsafe-memory-access=allow",
    "--enable-native-access=ALL-UNNAMED",
)
#: Settings that only spark-submit handles.
_SUBMIT_KEYS: Final = ("spark.jars", "spark.submit.", "spark.driver.extraClassPath", "spark.driver.extraLibraryPath")
_SUBMIT_VARIABLES: Final = ("SPARK_HOME", "SPARK_CONF_DIR", "PYSPARK_SUBMIT_ARGS")


class SparkUnavailable(Exception):
    """Spark is not running. The message is one sentence without a full stop."""


class Jvm:
    """One JVM process. ``props`` are Spark's settings; ``options`` are more Java options, used in local mode."""

    def __init__(self, props: Mapping[str, str], options: Sequence[str] = ()) -> None:
        java = java_executable()
        folder = Path(tempfile.mkdtemp(prefix="mm2-spark-"))
        environment = {**os.environ, "_PYSPARK_DRIVER_CONN_INFO_PATH": str(folder / "connection")}
        environment |= {"PYTHONHASHSEED": "0", "SPARK_CONNECT_MODE": "0"}
        if is_local(props):
            environment.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # Spark's web interface would listen on all addresses
        if is_ours(props):
            command = [java, *_java_options(props), *options, "org.apache.spark.api.python.PythonGatewayServer"]
            environment["CLASSPATH"] = classpath()
            settings = None
        else:
            settings = _in_memory(javaproperties.dumps(props, timestamp=False))
            command = _submit_command(f"/dev/fd/{settings}")
        self._folder = folder
        self._is_local = is_local(props)
        self._ending = False
        # The JVM exits when the pipe to its standard input is closed. In its own process group it does not get Ctrl-C.
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=environment,
                process_group=0,
                pass_fds=() if settings is None else (settings,),
            )
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)  # it is tried again for as long as the machine has no memory
            raise
        finally:
            if settings is not None:
                os.close(settings)
        self._stderr_lines: list[bytes] | None = []  # buffered while it starts; None: forwarded
        self._stderr_lock = threading.Lock()
        self._stderr_limit = LineLimit(_STDERR_LINES_A_MINUTE)
        self._listener = threading.Thread(target=self._listen, name="spark-stderr", daemon=True)
        self._listener.start()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether the process exists, even if it is frozen."""
        return self._process.poll() is None

    @property
    def settings(self) -> dict[str, str]:
        """Spark's settings of this JVM: in local mode, Python workers and results use UNIX sockets in a folder that
        other users cannot enter. The daemon of Python workers forks a process for each TCP connection, before it
        authenticates its client.
        """
        if not self._is_local or len(os.fsencode(self._folder)) > _SOCKET_FOLDER_BYTES:
            return {}
        prefix = "spark.python.unix.domain.socket"
        return {f"{prefix}.enabled": "true", f"{prefix}.dir": str(self._folder)}

    def gateway(self) -> Any:
        """Wait for the JVM and connect py4j to it. Raises SparkUnavailable."""
        from pyspark.java_gateway import launch_gateway  # noqa: PLC0415  (a tenth of a second, while Java starts)

        connection = self._folder / "connection"
        try:
            deadline = time.monotonic() + _START_TIMEOUT_S
            while not connection.exists():
                if not self.is_alive:
                    raise SparkUnavailable(self._died())
                if time.monotonic() > deadline:
                    raise SparkUnavailable(f"Spark's JVM did not start within {_START_TIMEOUT_S:.0f} s")
                time.sleep(_POLL_S)
            data = connection.read_bytes()  # port and length as four bytes each, then the secret
            port, secret = int.from_bytes(data[:4], "big"), data[8:].decode()
        finally:
            connection.unlink(missing_ok=True)
        # PySpark connects to an existing JVM that is named by these variables.
        variables = {"PYSPARK_GATEWAY_PORT": str(port), "PYSPARK_GATEWAY_SECRET": secret}
        with _ENVIRONMENT:
            os.environ.update(variables)
            try:
                gateway = launch_gateway()  # type: ignore[no-untyped-call]
            finally:
                for name in variables:
                    del os.environ[name]
        # The JVM also exits when this process is killed, and then no other process removes the folder.
        java = gateway.jvm
        java.org.apache.spark.util.ShutdownHookManager.registerShutdownDeleteDir(java.java.io.File(str(self._folder)))
        return gateway

    def end(self, patience_s: float) -> None:
        """Let it exit, so that it removes its temporary files; kill it after ``patience_s``. Idempotent."""
        self._ending = True
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(max(0.0, patience_s))
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    def forward_stderr(self) -> None:
        """Forward the standard error of the JVM and of the Python workers; until now it was buffered."""
        with self._stderr_lock:
            stderr_lines, self._stderr_lines = self._stderr_lines, None
            for line in stderr_lines or ():
                self._forward(line)

    def stderr_lines(self) -> list[str]:
        """The buffered lines of standard error."""
        with self._stderr_lock:
            return [line.decode(errors="replace").rstrip() for line in self._stderr_lines or ()]

    def _listen(self) -> None:
        assert self._process.stderr is not None  # noqa: S101  (a pipe, see above)
        with self._process.stderr as lines:
            for line in lines:
                if line.startswith(_INCUBATOR):
                    continue
                with self._stderr_lock:
                    if self._stderr_lines is None:
                        self._forward(line)
                    elif len(self._stderr_lines) < _STDERR_LINES_KEPT:
                        self._stderr_lines.append(line)

    def _forward(self, line: bytes) -> None:
        for allowed in self._stderr_limit.allowed(line, time.monotonic()):
            _write_stderr(allowed)

    def _died(self) -> str:
        if self._ending:
            return "Spark's JVM was stopped while it started"
        version = java_version(java_executable())
        if version is not None and version < MINIMUM_JAVA:
            return f"Spark needs Java {MINIMUM_JAVA} or newer, but {java_executable()} is Java {version}"
        self._listener.join(1)
        lines = [line for line in self.stderr_lines() if line.strip() and not line.startswith(("\t", " "))]
        reason = next((line for line in lines if "Exception" in line or "Error" in line), lines[-1] if lines else "")
        ended = f"Spark's JVM ended with exit code {self._process.returncode} before it was running"
        return f"{ended}: {sentence(reason)}" if reason else ended


class LineLimit:
    """Passes at most ``lines`` lines on in a minute, and the number of the others at the start of the next one."""

    def __init__(self, lines: int) -> None:
        self._lines = lines
        self._since = float("-inf")
        self._count = 0

    def allowed(self, line: bytes, now_s: float) -> Iterator[bytes]:
        """What to write for this line."""
        if now_s - self._since >= 60:
            if (omitted := self._count - self._lines) > 0:
                yield b"[spark] %d lines were omitted\n" % omitted
            self._since, self._count = now_s, 0
        self._count += 1
        if self._count <= self._lines:
            yield line
            if self._count == self._lines:
                yield b"[spark] %d lines within a minute: the rest of this minute is omitted\n" % self._lines


def sentence(text: str) -> str:
    """The message of a Java error, without thread, exception classes and full stop."""
    text = re.sub(r'^Exception in thread "[^"]*" ', "", text)
    return re.sub(r"^(?:[\w.$]+(?:Exception|Error): )+", "", text).strip().rstrip(".")


def _write_stderr(line: bytes) -> None:
    with contextlib.suppress(OSError):
        os.write(2, line)


_ENVIRONMENT: Final = threading.Lock()


def is_local(props: Mapping[str, str]) -> bool:
    """Whether Spark runs on this machine only, inside its driver."""
    return re.match(r"local(\[|$)", props["spark.master"]) is not None  # local-cluster has executors of its own


def is_ours(props: Mapping[str, str]) -> bool:
    """Whether this module starts the JVM without spark-submit."""
    return (
        is_local(props)
        and not any(key.startswith(_SUBMIT_KEYS) for key in props)
        and not any(os.environ.get(name) for name in _SUBMIT_VARIABLES)
    )


def java_executable() -> str:
    """The `java` that Spark's scripts use: that of JAVA_HOME, else of the PATH. Raises SparkUnavailable."""
    home = os.environ.get("JAVA_HOME")
    if home:
        found = str(Path(home) / "bin" / "java")
        if os.access(found, os.X_OK):
            return found
        raise SparkUnavailable(
            f"Spark needs Java {MINIMUM_JAVA} or newer, but JAVA_HOME is {home} and {found} cannot be run"
        )
    on_path = shutil.which("java")
    if on_path is None:
        raise SparkUnavailable(f"Spark needs Java {MINIMUM_JAVA} or newer, but there is no java on the PATH")
    return on_path


def java_version(java: str) -> int | None:
    """Its major version; None when it is unknown."""
    try:
        output = subprocess.run([java, "-version"], capture_output=True, text=True, check=False, timeout=20).stderr
    except (OSError, subprocess.TimeoutExpired):
        return None
    numbers = output.partition('version "')[2].split(".", 2)
    major = numbers[1] if numbers[0] == "1" and len(numbers) > 1 else numbers[0]
    digits = major.partition('"')[0].partition("-")[0]
    return int(digits) if digits.isdigit() else None


def spark_home() -> Path:
    """SPARK_HOME, or PySpark's folder."""
    if home := os.environ.get("SPARK_HOME"):
        return Path(home)
    spec = importlib.util.find_spec("pyspark")
    if spec is None or not spec.submodule_search_locations:
        raise SparkUnavailable("PySpark is not installed")
    return Path(next(iter(spec.submodule_search_locations)))


def classpath() -> str:
    """Spark's jars by name, in the fixed order that a class archive requires."""
    return os.pathsep.join(str(jar) for jar in sorted((spark_home() / "jars").glob("*.jar")))


def archive_file() -> Path:
    """Path of the class archive that `mm2.copy.driver.archive` creates."""
    return Path(sys.prefix) / "share" / "mm2" / "spark.jsa"


def _java_options(props: Mapping[str, str]) -> list[str]:
    options = [
        *shlex.split(props.get("spark.driver.defaultJavaOptions", "")),
        *shlex.split(props.get("spark.driver.extraJavaOptions", "")),
        f"-Xmx{props.get('spark.driver.memory', '1g')}",
        *MODULE_OPTIONS,
    ]
    archive = archive_file()
    if archive.exists():
        # Java ignores an archive of another JVM or other jars, and would print a warning to standard output.
        options += ["-Xshare:auto", f"-XX:SharedArchiveFile={archive}", "-Xlog:disable", "-Xlog:all=error:stderr"]
    return options


def _submit_command(settings: str) -> list[str]:
    # In a file, because the settings may contain secrets, and command lines are readable by other users.
    submit = str(spark_home() / "bin" / "spark-submit")
    words = shlex.split(os.environ.get("PYSPARK_SUBMIT_ARGS", "pyspark-shell"))
    return [submit, "--properties-file", settings, "--load-spark-defaults", *words]


def _in_memory(text: str) -> int:
    """The descriptor of an in-memory file."""
    descriptor = os.memfd_create("spark-settings")
    with os.fdopen(os.dup(descriptor), "w", encoding="latin-1") as file:
        file.write(text)
    return descriptor
