"""Jars and logging of Java programs: MirrorMaker 2 and Connect for comparisons, and old brokers."""

from mm2.sandbox.errors import SandboxError
from mm2.sandbox.jars import KAFKA, KAFKA_VERSION, JarSet, class_archive, classpath
from mm2.sandbox.java import java_executable

CONNECT_MIRROR = JarSet(
    f"connect-mirror-{KAFKA_VERSION}",
    (("org.apache.kafka", "connect-mirror", KAFKA_VERSION), *KAFKA.coordinates),
)
"""Java's MirrorMaker 2; it includes Connect's workers."""
CONNECT_FILE = JarSet(f"connect-file-{KAFKA_VERSION}", (("org.apache.kafka", "connect-file", KAFKA_VERSION),))
"""The FileStream connectors, which a plain Connect worker does not include."""

OLD_VERSIONS = ("2.1.1", "2.6.3")
"""Versions whose Fetch does not compare leader epochs."""


def connect_java(heap: str, *options: str) -> list[str]:
    """Java with Connect's classes, to be followed by a main class: a start needs little processor time.

    Its class archive, which halves the start of a worker, is created by `python -m tests.systems.archive`.
    """
    archive = class_archive(CONNECT_MIRROR)
    shared = [f"-XX:SharedArchiveFile={archive}"] if archive.exists() else []
    return [
        *(java_executable(), f"-Xmx{heap}", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto", *shared),
        # An archive is valid for class paths that begin with its own.
        *("-Djava.awt.headless=true", *options, "-cp", f"{classpath(CONNECT_MIRROR)}:{classpath(CONNECT_FILE)}"),
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


def console_logging(pattern: str) -> str:
    """Log4j 2 properties that make a Java program of Kafka log to its standard output."""
    return f"""\
status = error
rootLogger.level = info
rootLogger.appenderRef.out.ref = out
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = {pattern}
"""
