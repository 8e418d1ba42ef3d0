"""The JVM of Spark's driver: how it is started, and how it is made to end.

PySpark starts it through spark-submit: two shell scripts and a JVM of its own that computes the command line of the
second. When Spark runs on this machine only, that command line is known here, which saves a second, and the warning
about incubator modules (of `jdk.incubator.vector`, which only Spark's machine learning uses). On a cluster it is
spark-submit's job: spark-env.sh, YARN, Kubernetes and packages are its business.
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
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import javaproperties

MINIMUM_JAVA: Final = 17
"""Of Spark 4."""

_START_TIMEOUT_S: Final = 90.0
_LOOK_S: Final = 0.005
_SAID_KEPT: Final = 500
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
#: Whoever sets one of these wants what spark-submit does with it.
_SUBMIT_KEYS: Final = ("spark.jars", "spark.submit.", "spark.driver.extraClassPath", "spark.driver.extraLibraryPath")
_SUBMIT_VARIABLES: Final = ("SPARK_HOME", "SPARK_CONF_DIR", "PYSPARK_SUBMIT_ARGS")


class SparkUnavailable(Exception):
    """Spark does not run; the message is one sentence without a full stop that says why."""


class Jvm:
    """One start of it. ``props`` are Spark's; ``options`` more options for Java, where we start it ourselves."""

    def __init__(self, props: Mapping[str, str], options: Sequence[str] = ()) -> None:
        java = java_executable()
        folder = Path(tempfile.mkdtemp(prefix="mm2-spark-"))
        environment = {**os.environ, "_PYSPARK_DRIVER_CONN_INFO_PATH": str(folder / "connection")}
        environment |= {"PYTHONHASHSEED": "0", "SPARK_CONNECT_MODE": "0"}
        if is_ours(props):
            command = [java, *_java_options(props), *options, "org.apache.spark.api.python.PythonGatewayServer"]
            environment["CLASSPATH"] = classpath()
            settings = None
        else:
            settings = _in_memory(javaproperties.dumps(props, timestamp=False))
            command = _submit_command(f"/dev/fd/{settings}")
        self._folder = folder
        self._ending = False
        # Its standard input is a pipe from us: it ends when we do. A process group of its own: Ctrl-C is for us to handle.
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            process_group=0,
            pass_fds=() if settings is None else (settings,),
        )
        if settings is not None:
            os.close(settings)
        self._said: list[bytes] | None = []  # while it starts; None: it is passed on
        self._saying = threading.Lock()
        self._listener = threading.Thread(target=self._listen, name="spark-stderr", daemon=True)
        self._listener.start()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether the process is there; a frozen one is."""
        return self._process.poll() is None

    def gateway(self) -> Any:
        """Wait until it is up and connect py4j to it. Raises SparkUnavailable."""
        from pyspark.java_gateway import launch_gateway  # noqa: PLC0415  (a tenth of a second, while Java starts)

        try:
            connection = self._folder / "connection"
            deadline = time.monotonic() + _START_TIMEOUT_S
            while not connection.exists():
                if not self.is_alive:
                    raise SparkUnavailable(self._died())
                if time.monotonic() > deadline:
                    raise SparkUnavailable(f"Spark's JVM was not up after {_START_TIMEOUT_S:.0f} s")
                time.sleep(_LOOK_S)
            data = connection.read_bytes()  # port and length as four bytes each, then the secret
            port, secret = int.from_bytes(data[:4], "big"), data[8:].decode()
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)
        # PySpark's way to be told of a JVM that somebody else has started.
        told = {"PYSPARK_GATEWAY_PORT": str(port), "PYSPARK_GATEWAY_SECRET": secret}
        with _ENVIRONMENT:
            os.environ.update(told)
            try:
                return launch_gateway()  # type: ignore[no-untyped-call]
            finally:
                for name in told:
                    del os.environ[name]

    def end(self, patience_s: float) -> None:
        """Have it end by itself, which removes its temporary files; killed when that takes longer. Idempotent."""
        self._ending = True
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(max(0.0, patience_s))
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    def let_speak(self) -> None:
        """From now on what it and the Python workers say on standard error goes to ours; it is held back before."""
        with self._saying:
            said, self._said = self._said, None
            for line in said or ():
                _say(line)

    def said(self) -> list[str]:
        """What it has said so far, if that was held back."""
        with self._saying:
            return [line.decode(errors="replace").rstrip() for line in self._said or ()]

    def _listen(self) -> None:
        assert self._process.stderr is not None  # noqa: S101  (a pipe, see above)
        with self._process.stderr as lines:
            for line in lines:
                if line.startswith(_INCUBATOR):
                    continue
                with self._saying:
                    if self._said is None:
                        _say(line)
                    elif len(self._said) < _SAID_KEPT:
                        self._said.append(line)

    def _died(self) -> str:
        if self._ending:
            return "Spark's JVM was ended while it started"
        version = java_version(java_executable())
        if version is not None and version < MINIMUM_JAVA:
            return f"Spark needs Java {MINIMUM_JAVA} or newer, but {java_executable()} is Java {version}"
        self._listener.join(1)
        told = [line for line in self.said() if line.strip() and not line.startswith(("\t", " "))]
        reason = next((line for line in told if "Exception" in line or "Error" in line), told[-1] if told else "")
        ended = f"Spark's JVM ended with exit code {self._process.returncode} before it was up"
        return f"{ended}: {sentence(reason)}" if reason else ended


def sentence(text: str) -> str:
    """What a failure is about, out of Java's words for it: without thread, classes of exceptions, and full stop."""
    text = re.sub(r'^Exception in thread "[^"]*" ', "", text)
    return re.sub(r"^(?:[\w.$]+(?:Exception|Error): )+", "", text).strip().rstrip(".")


def _say(line: bytes) -> None:
    with contextlib.suppress(OSError):
        os.write(2, line)


_ENVIRONMENT: Final = threading.Lock()


def is_local(props: Mapping[str, str]) -> bool:
    """Whether Spark runs on this machine only, inside its driver."""
    return re.match(r"local(\[|$)", props["spark.master"]) is not None  # local-cluster has executors of its own


def is_ours(props: Mapping[str, str]) -> bool:
    """Whether the JVM is started by us, not by spark-submit."""
    return (
        is_local(props)
        and not any(key.startswith(_SUBMIT_KEYS) for key in props)
        and not any(os.environ.get(name) for name in _SUBMIT_VARIABLES)
    )


def java_executable() -> str:
    """The `java` that Spark's scripts would take: that of JAVA_HOME, else of the PATH. Raises SparkUnavailable."""
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
    """Its major version; None when it does not tell."""
    try:
        told = subprocess.run([java, "-version"], capture_output=True, text=True, check=False, timeout=20).stderr
    except (OSError, subprocess.TimeoutExpired):
        return None
    numbers = told.partition('version "')[2].split(".", 2)
    major = numbers[1] if numbers[0] == "1" and len(numbers) > 1 else numbers[0]
    digits = major.partition('"')[0].partition("-")[0]
    return int(digits) if digits.isdigit() else None


def spark_home() -> Path:
    """PySpark's own folder, or SPARK_HOME."""
    if home := os.environ.get("SPARK_HOME"):
        return Path(home)
    spec = importlib.util.find_spec("pyspark")
    if spec is None or not spec.submodule_search_locations:
        raise SparkUnavailable("PySpark is not installed")
    return Path(next(iter(spec.submodule_search_locations)))


def classpath() -> str:
    """Spark's jars by name: an order that is the same everywhere, as an archive of their classes asks for."""
    return os.pathsep.join(str(jar) for jar in sorted((spark_home() / "jars").glob("*.jar")))


def archive_file() -> Path:
    """Where `mm2.copy.driver.archive` puts the classes that Java need not load one by one."""
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
        # Java checks that it belongs to this JVM and these jars, and goes without if not; it would say so on standard output.
        options += ["-Xshare:auto", f"-XX:SharedArchiveFile={archive}", "-Xlog:disable", "-Xlog:all=error:stderr"]
    return options


def _submit_command(settings: str) -> list[str]:
    # In a file, for the settings may hold secrets, and everybody can read command lines.
    submit = str(spark_home() / "bin" / "spark-submit")
    words = shlex.split(os.environ.get("PYSPARK_SUBMIT_ARGS", "pyspark-shell"))
    return [submit, "--properties-file", settings, "--load-spark-defaults", *words]


def _in_memory(text: str) -> int:
    """The descriptor of a file that is on no disk."""
    descriptor = os.memfd_create("spark-settings")
    with os.fdopen(os.dup(descriptor), "w", encoding="latin-1") as file:
        file.write(text)
    return descriptor
