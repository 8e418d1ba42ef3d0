"""A client of Spark's RPC port that has no secret: what another user of the machine can run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from mm2.copy.driver.jvm import Jvm


@contextmanager
def spark_classes() -> Iterator[Any]:
    """Spark's classes in a JVM of its own, through py4j."""
    jvm = Jvm({"spark.master": "local[1]"})
    try:
        yield jvm.gateway().jvm
    finally:
        jvm.end(1.0)


def security_manager(java: Any, conf: Any) -> Any:
    """Spark's SecurityManager for these settings."""
    made = java.org.apache.spark.SecurityManager
    return made(conf, *(getattr(made, f"$lessinit$greater$default${number}")() for number in (2, 3)))


def stop_executor(java: Any, port: int, settings: dict[str, str] | None = None) -> bool:
    """Send the message with which Spark stops the executor of local mode. Raises Py4JError if it is rejected."""
    conf = java.org.apache.spark.SparkConf(False)
    for key, value in (settings or {}).items():
        conf.set(key, value)
    security = security_manager(java, conf)
    environment = java.org.apache.spark.rpc.RpcEnv.create("attacker", "127.0.0.1", 0, conf, security, True)
    address = java.org.apache.spark.rpc.RpcAddress("127.0.0.1", port)
    try:
        endpoint = environment.setupEndpointRef(address, "LocalSchedulerBackendEndpoint")
        message = getattr(getattr(java.org.apache.spark.scheduler.local, "StopExecutor$"), "MODULE$")
        return bool(endpoint.askSync(message, java.scala.reflect.ClassTag.Any()))
    finally:
        environment.shutdown()
