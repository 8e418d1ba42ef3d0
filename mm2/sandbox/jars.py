"""Kafka's jars, downloaded with the Ivy of PySpark, so that a machine needs only Java and pip.

A jar set is one folder in the user's cache folder. It is downloaded to a temporary folder, checked against a manifest
and renamed, so the folder is either complete or absent. A lock file prevents concurrent downloads.
"""

import fcntl
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from mm2.sandbox.errors import SandboxError
from mm2.sandbox.java import java_executable

KAFKA_VERSION = "4.3.0"

_NETWORK_ERRORS = (
    "UnknownHostException",
    "ConnectException",
    "NoRouteToHost",
    "SocketTimeout",
    "SSLHandshake",
    "SSLException",
)
_QUIET_INTERVAL_S = 5.0


@dataclass(frozen=True)
class JarSet:
    """Modules with their run-time dependencies. `coordinates` are (organisation, module, version) triples."""

    name: str
    coordinates: tuple[tuple[str, str, str], ...]
    manifest: Path | None = None
    """Committed checksums; without a manifest, the checksums of the first download are used."""


@dataclass(frozen=True)
class Jar:
    """One line of a manifest."""

    name: str
    size: int
    """In bytes."""
    sha256: str


_BROKER = ("org.apache.kafka", "kafka_2.13", KAFKA_VERSION)
# Kafka logs to slf4j 1.7, and its module leaves the choice of a backend to the distribution.
_LOGGING = ("org.apache.logging.log4j", "log4j-slf4j-impl", "2.25.4")

KAFKA = JarSet(
    f"kafka-{KAFKA_VERSION}",
    (_BROKER, _LOGGING),
    Path(__file__).with_name(f"kafka-{KAFKA_VERSION}.sha256"),
)


def classpath(jars: JarSet) -> str:
    """Java class path of `jars`, downloaded if needed. Raises SandboxError."""
    return f"{fetch(jars)}/*"


def cache_folder() -> Path:
    """Cache folder of this project: `$XDG_CACHE_HOME/mm2`, else `~/.cache/mm2`."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "mm2"


def class_archive(jars: JarSet) -> Path:
    """Where the class archive of this Java and these jars is, or would be. Raises SandboxError when Java is missing."""
    java = Path(java_executable()).resolve()
    identity = hashlib.sha256(f"{java} {java.stat().st_mtime_ns}".encode()).hexdigest()
    return cache_folder() / f"{jars.name}-{identity[:12]}.jsa"


def fetch(jars: JarSet) -> Path:
    """The folder with exactly the jars of `jars`, each of the right size; downloads it again otherwise.

    Sizes are compared at each use, because truncated and missing jars are the usual damage; checksums are compared
    after each download. Raises SandboxError when Java is missing or the registry is unreachable.
    """
    folder = cache_folder() / jars.name
    if _intact(jars, folder):
        return folder
    with _only_one_process(folder.parent, jars.name):
        wrong = damage(jars, folder) if folder.exists() else None
        if folder.exists() and wrong is None:
            return folder  # another process has downloaded it
        if wrong is not None:
            _print(f"{jars.name}: {wrong}; fetching it again")
        _download(jars, folder)
    return folder


def damage(jars: JarSet, folder: Path, *, contents: bool = False) -> str | None:
    """A sentence about the first damaged jar in `folder`, or None. `contents` compares checksums as well."""
    manifest = _manifest_of(jars, folder)
    if manifest is None:
        return "the list of its jars is missing"
    present = {path.name for path in folder.glob("*.jar")}
    for jar in manifest:
        path = folder / jar.name
        if jar.name not in present:
            return f"{jar.name} is missing"
        if path.stat().st_size != jar.size:
            return f"{jar.name} is corrupt: {path.stat().st_size} bytes instead of {jar.size}"
        if contents and _sha256(path) != jar.sha256:
            return f"{jar.name} is corrupt: its SHA-256 differs from the manifest"
    unknown = present - {jar.name for jar in manifest}
    return f"{min(unknown)} does not belong to it" if unknown else None


def read_manifest(text: str) -> list[Jar]:
    """Parse lines of `<sha256> <size in bytes> <file name>`; `#` starts a comment line."""
    rows = (line.split() for line in text.splitlines() if line.strip() and not line.startswith("#"))
    return [Jar(name=name, size=int(size), sha256=sha256) for sha256, size, name in rows]


def write_manifest(folder: Path) -> str:
    """The manifest of the jars in `folder`, sorted by name."""
    lines = [f"{_sha256(path)} {path.stat().st_size} {path.name}" for path in sorted(folder.glob("*.jar"))]
    return "\n".join(lines) + "\n"


def _intact(jars: JarSet, folder: Path) -> bool:
    return folder.exists() and damage(jars, folder) is None


def _manifest_of(jars: JarSet, folder: Path) -> list[Jar] | None:
    path = jars.manifest or folder / "MANIFEST.sha256"
    return read_manifest(path.read_text()) if path.exists() else None


def _download(jars: JarSet, folder: Path) -> None:
    java = java_executable()
    folder.parent.mkdir(parents=True, exist_ok=True)
    ivy_cache = folder.parent / f".{jars.name}.ivy"  # kept when interrupted, so that the next run resumes the download
    expected = len(read_manifest(jars.manifest.read_text())) if jars.manifest else None
    for left_over in folder.parent.glob(f".{jars.name}.new-*"):  # left by a killed run; this process holds the lock
        shutil.rmtree(left_over, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=f".{jars.name}.new-", dir=folder.parent) as scratch:
        place = Path(scratch) / jars.name
        for attempt in (1, 2):
            _run_ivy(java, jars, place, ivy_cache, expected)
            wrong = damage(jars, place, contents=True) if jars.manifest else None
            if wrong is None:
                break
            # Ivy may have kept a damaged copy from an earlier run: start again with an empty cache.
            _print(f"{jars.name}: {wrong}")
            shutil.rmtree(place, ignore_errors=True)
            shutil.rmtree(ivy_cache, ignore_errors=True)
            if attempt == 2:
                raise SandboxError(f"{jars.name} was downloaded twice and is still not right: {wrong}.")
        if jars.manifest is None:
            (place / "MANIFEST.sha256").write_text(write_manifest(place))
        shutil.rmtree(folder, ignore_errors=True)
        place.rename(folder)
    shutil.rmtree(ivy_cache, ignore_errors=True)  # a second copy of every jar


def _run_ivy(java: str, jars: JarSet, place: Path, ivy_cache: Path, expected: int | None) -> None:
    place.mkdir(parents=True)
    module = place.parent / "ivy.xml"
    module.write_text(_ivy_module(jars))
    settings = os.environ.get("MM2_IVY_SETTINGS")  # a private registry
    command = [
        java,
        *_proxy_options(os.environ),
        *("-cp", str(_ivy_jar()), "org.apache.ivy.Main"),
        *(("-settings", settings) if settings else ()),
        *("-ivy", str(module), "-cache", str(ivy_cache), "-confs", "default"),
        *("-retrieve", f"{place}/[artifact]-[revision](-[classifier]).[ext]", "-types", "jar", "bundle"),
    ]
    output: list[str] = []
    with (
        _progress(f"Downloading {jars.name}", expected) as advance,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as ivy,
    ):
        try:
            for line in ivy.stdout or ():
                output.append(line.rstrip())
                if line.startswith("\tfound ") or "[SUCCESSFUL ]" in line:
                    advance()
        except BaseException:
            ivy.kill()
            raise
        if ivy.wait() != 0:
            raise SandboxError(_why_ivy_failed(jars, output))


def _why_ivy_failed(jars: JarSet, output: list[str]) -> str:
    network = next((line.strip() for line in output if any(error in line for error in _NETWORK_ERRORS)), None)
    if network:
        return (
            f"{jars.name} could not be downloaded because the Maven registry is unreachable ({network[:200]}): "
            "check the network (https_proxy is used, MM2_IVY_SETTINGS can name an Ivy settings file) and run it again."
        )
    missing = next((line.strip(": \t") for line in output if "not found" in line or "UNRESOLVED" in line), None)
    return f"{jars.name} could not be downloaded: {missing or ' / '.join(output[-3:])[:300] or 'Ivy printed nothing'}."


def _ivy_module(jars: JarSet) -> str:
    rows = "".join(
        f'<dependency org="{org}" name="{name}" rev="{rev}" conf="default->default"/>'
        for org, name, rev in jars.coordinates
    )
    return (
        '<ivy-module version="2.0"><info organisation="mm2" module="sandbox"/>'
        '<configurations><conf name="default"/></configurations>'
        f"<dependencies>{rows}</dependencies></ivy-module>"
    )


def _ivy_jar() -> Path:
    spark = importlib.util.find_spec("pyspark")  # not imported: only its folder is needed
    folders = list(spark.submodule_search_locations or ()) if spark else []
    for folder in folders:
        for path in sorted((Path(folder) / "jars").glob("ivy-*.jar")):
            return path
    raise SandboxError("PySpark, whose Ivy downloads Kafka, is not installed in this environment: run bin/setup.")


def _proxy_options(environment: Mapping[str, str]) -> list[str]:
    """Proxy options for Java, which ignores `https_proxy`; pip uses it, so a user expects it to work."""
    options = []
    for scheme in ("http", "https"):
        url = environment.get(f"{scheme}_proxy") or environment.get(f"{scheme.upper()}_PROXY")
        proxy = urlsplit(url) if url else None
        if proxy and proxy.hostname:
            options += [f"-D{scheme}.proxyHost={proxy.hostname}", f"-D{scheme}.proxyPort={proxy.port or 80}"]
    return options


@contextmanager
def _only_one_process(folder: Path, name: str) -> Iterator[None]:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f".{name}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _print(f"{name}: waiting for another process that is downloading it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def _progress(what: str, jars: int | None) -> Iterator[Callable[[], None]]:
    """A progress bar on a terminal, otherwise a line every few seconds.

    Each jar counts twice: resolved and downloaded.
    """
    steps = 2 * jars if jars else None
    console = Console(stderr=True)
    if console.is_terminal:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f}%"),
            TimeElapsedColumn(),
        )
        with Progress(*columns, console=console) as bar:
            task = bar.add_task(what, total=steps)
            yield lambda: bar.advance(task)
        return
    begin = reported = time.monotonic()
    done = 0

    def advance() -> None:
        nonlocal done, reported
        done += 1
        now = time.monotonic()
        if now - reported >= _QUIET_INTERVAL_S:
            reported = now
            share = f"{100 * done // steps} %" if steps else f"{done} steps"
            _print(f"{what}: {share}, {now - begin:.0f} s")

    _print(what)
    yield advance
    _print(f"{what}: done in {time.monotonic() - begin:.0f} s")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _print(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()
