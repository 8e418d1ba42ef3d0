"""Jars and logging of Java programs: MirrorMaker 2 and Connect for comparisons, and old brokers."""

import subprocess
import tempfile
from pathlib import Path
from typing import Final

from mm2.sandbox.errors import SandboxError
from mm2.sandbox.jars import KAFKA, KAFKA_VERSION, JarSet, cache_folder, class_archive, classpath
from mm2.sandbox.java import java_executable

MIRROR_VERSION: Final = "4.3.1"
"""The newest MirrorMaker 2 in Maven Central."""
CONNECT_VERSION: Final = "4.4.0"
"""The newest Connect in Maven Central."""


def _mirror(version: str) -> JarSet:
    broker, logging = KAFKA.coordinates
    modules = (("org.apache.kafka", "connect-mirror", version), (*broker[:2], version), logging)
    return JarSet(f"connect-mirror-{version}", modules)


def _file(version: str) -> JarSet:
    return JarSet(f"connect-file-{version}", (("org.apache.kafka", "connect-file", version),))


CONNECT_MIRROR: Final = _mirror(KAFKA_VERSION)
"""Java's MirrorMaker 2; it includes Connect's workers."""
CONNECT_FILE: Final = _file(KAFKA_VERSION)
"""The FileStream connectors, which a plain Connect worker does not include."""
_MOVED: Final = """\
package org.apache.kafka.common.utils;
public class AppInfoParser {
    public static String getVersion() { return org.apache.kafka.common.utils.internals.AppInfoParser.getVersion(); }
}
"""
"""FileStream connectors before 4.4 call this class, which has another package since then."""

OLD_VERSIONS = ("2.1.1", "2.6.3")
"""Versions whose Fetch does not compare leader epochs."""


def connect_classpath(version: str) -> str:
    """Connect of a version with its FileStream connectors, and MirrorMaker 2 where Maven Central has it. Raises SandboxError."""
    if version != CONNECT_VERSION:
        return f"{classpath(_mirror(version))}:{classpath(_file(version))}"
    runtime = JarSet(
        f"connect-runtime-{version}", (("org.apache.kafka", "connect-runtime", version), KAFKA.coordinates[1])
    )
    jars = classpath(runtime)
    # Not as `<folder>/*`, which has kafka-clients of the same version as the connectors.
    connectors = next(Path(classpath(_file(MIRROR_VERSION)).removesuffix("*")).glob("connect-file-*.jar"))
    return f"{jars}:{connectors}:{_moved_class(jars)}"


def _moved_class(jars: str) -> Path:
    """The folder with the class of `_MOVED`; compiles it the first time, which needs a JDK."""
    folder = cache_folder() / f"moved-classes-{CONNECT_VERSION}"
    if not folder.exists():
        with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
            source, made = Path(scratch) / "AppInfoParser.java", Path(scratch) / "classes"
            source.write_text(_MOVED)
            subprocess.run(["javac", "-cp", jars, "-d", str(made), str(source)], check=True)
            try:
                made.rename(folder)
            except OSError:
                if not folder.exists():  # otherwise another process has made it
                    raise
    return folder


def connect_java(heap: str, *options: str, version: str = KAFKA_VERSION) -> list[str]:
    """Java with Connect's classes, to be followed by a main class: a start needs little processor time.

    Its class archive, which halves the start of a worker of Kafka 4.3.0, is created by `python -m tests.systems.archive`.
    """
    archive = class_archive(_mirror(version))
    shared = [f"-XX:SharedArchiveFile={archive}"] if archive.exists() else []
    return [
        *(java_executable(), f"-Xmx{heap}", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto", *shared),
        # An archive is valid for class paths that begin with its own.
        *("-Djava.awt.headless=true", *options, "-cp", connect_classpath(version)),
    ]


def old_broker(version: str) -> JarSet:
    """A broker of Kafka 2 with ZooKeeper, which is one of its dependencies."""
    if not version.startswith("2."):
        raise SandboxError(f"Kafka {version} does not start with ZooKeeper here.")
    logging = ("org.slf4j", "slf4j-log4j12", "1.7.30")  # Kafka before 4.0 uses log4j 1
    # Up to 3.5.7 it cannot resolve a host name with Java 14 and later (ZOOKEEPER-3779).
    zookeeper = ("org.apache.zookeeper", "zookeeper", "3.5.9")
    return JarSet(f"kafka-{version}-zookeeper", (("org.apache.kafka", "kafka_2.12", version), zookeeper, logging))


def kraft_broker(version: str) -> JarSet:
    """A broker in KRaft mode of Kafka 3.3 or newer."""
    if version == KAFKA_VERSION:
        return KAFKA
    _, logging = KAFKA.coordinates
    if version.startswith("3."):
        logging = ("org.slf4j", "slf4j-reload4j", "1.7.36")  # log4j 1
    return JarSet(f"kafka-{version}", (("org.apache.kafka", "kafka_2.13", version), logging))


def console_logging(pattern: str, level: str = "info") -> str:
    """Log4j 2 properties that make a Java program log to its standard output."""
    return f"""\
status = error
rootLogger.level = {level}
rootLogger.appenderRef.out.ref = out
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = {pattern}
"""
