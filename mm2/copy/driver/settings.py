"""Settings of Spark: the defaults, and the protection of its connections.

In local mode every connection stays on loopback and is authenticated with a secret that Spark generates at each start
and keeps in memory (SecurityManager.initializeAuth). On YARN and Kubernetes Spark generates and distributes the secret,
too. A standalone cluster has one secret for its master, its workers and all applications, which the operator sets.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import javaproperties

from mm2.config.definitions.values import ConfigException
from mm2.copy.driver.jvm import is_local

_LOG_SETTINGS: Final = Path(__file__).with_name("log4j2.properties")
# A small young generation and little free heap: garbage of each job is collected early, and memory use stays constant.
# Buffers outside of the heap would grow to twice its size, one share each for Java's channels and for Netty: Spark
# receives the first message of a client, of up to 2 GB, before it authenticates the client.
_JVM_OPTIONS: Final = (
    "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:-UsePerfData -Xss512k "
    "-Xmn24m -XX:MaxDirectMemorySize=96m -XX:MinHeapFreeRatio=15 -XX:MaxHeapFreeRatio=30 "
    f'"-Dlog4j2.configurationFile={_LOG_SETTINGS}"'
)

#: Default Spark settings of a copying process.
DEFAULTS: Final[Mapping[str, str]] = {
    # Lanes wait on sockets: with as many slots as cores the third lane starved for seconds.
    "spark.master": "local[512]",
    "spark.app.name": "mm2",
    "spark.default.parallelism": "2",
    # The default is the number of slots: 512 idle dispatcher threads.
    "spark.rpc.netty.dispatcher.numThreads": "2",
    "spark.shuffle.mapOutput.dispatcher.numThreads": "1",
    # The minimum that Spark accepts; the heap grows only on demand.
    "spark.driver.memory": "480m",
    "spark.ui.enabled": "false",
    # For those who enable it: users that a filter of spark.ui.filters authenticates need the right to see it.
    "spark.acls.enable": "true",
    "spark.ui.killEnabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.ui.retainedJobs": "50",
    "spark.ui.retainedStages": "50",
    "spark.ui.retainedTasks": "200",
    "spark.ui.retainedDeadExecutors": "5",
    "spark.sql.ui.retainedExecutions": "1",
    # For those who enable the event log: about 3 KB for each micro-batch, for as long as the process runs.
    "spark.eventLog.rolling.enabled": "true",
    "spark.eventLog.rolling.maxFileSize": "16m",
    "spark.python.worker.reuse": "true",
    "spark.python.daemon.module": "mm2.copy.executor.daemon",
    "spark.broadcast.compress": "false",
    "spark.cleaner.periodicGC.interval": "5min",
    # On YARN and Kubernetes an application ends with the failure of an executor that is one too many in its whole life.
    "spark.executor.failuresValidityInterval": "1h",
}
#: Spark gives new micro-batches to an executor that hangs until it removes it: after 120 to 180 s by default.
_ON_A_CLUSTER: Final = {
    "spark.executor.heartbeatInterval": "3s",
    "spark.storage.blockManagerHeartbeatTimeoutMs": "20s",
    "spark.network.timeoutInterval": "5s",
}
#: Prefix of keys that Spark does not read.
_OWN: Final = "spark.mm2."
#: Two attempts of a task would both write. With one attempt and exclusion, Spark ends the context at the first job.
ALWAYS: Final = {
    "spark.speculation": "false",
    "spark.task.maxFailures": "1",
    "spark.excludeOnFailure.enabled": "false",
    "spark.excludeOnFailure.application.enabled": "false",
}
_LOOPBACK: Final = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}

_AUTHENTICATE: Final = "spark.authenticate"
_SECRET: Final = "spark.authenticate.secret"  # noqa: S105  (the name of a key)
_CRYPTO: Final = "spark.network.crypto.enabled"
_SSL: Final = "spark.ssl.rpc.enabled"
#: Without it, an attacker on the network who breaks the first handshake gets the older one, which does not encrypt.
_NO_FALLBACK: Final = {"spark.network.crypto.saslFallback": "false"}
_AUTHENTICATED: Final = {_AUTHENTICATE: "true", _CRYPTO: "true", **_NO_FALLBACK}
#: As in SparkMasterRegex; only these start.
_LOCAL_MASTER: Final = re.compile(r"local(\[([0-9]+|\*)(\s*,\s*[0-9]+)?\])?")
_ON_LOOPBACK: Final = ("spark://127.", "spark://localhost:", "spark://[::1]", "local-cluster")


def spark_props(user: Mapping[str, str]) -> dict[str, str]:
    """All Spark settings, from the user's ``spark.*`` keys.

    There is neither speculation nor a second attempt: two copies of a task would both write, and the driver itself starts the next
    micro-batch. On a cluster Spark chooses the driver's address, unless the master is on loopback. Raises ConfigException for other
    values of these keys, and for a cluster whose connections would not be protected, unless ``user`` or spark-defaults.conf states that.
    """
    for key, value in ALWAYS.items():
        if user.get(key, value).strip().lower() != value:
            raise ConfigException(
                f"Invalid value {user[key]} for configuration {key}: it must be {value}, because two attempts of a task would both write."
            )
    props = {**DEFAULTS, **user, **ALWAYS}
    props.setdefault("spark.driver.extraJavaOptions", _JVM_OPTIONS)
    if is_local(props):
        # Do not import modules from the current directory.
        local = {**_LOOPBACK, "spark.executorEnv.PYTHONSAFEPATH": "1", **props}
        # Spark generates no secret for a master that it rejects, and would report the missing secret instead of the master.
        return {**local, **_AUTHENTICATED} if _LOCAL_MASTER.fullmatch(props["spark.master"]) else local
    if _is_on_loopback(props):
        props = {**_LOOPBACK, **props}
    if not _ON_A_CLUSTER.keys() & {**_spark_defaults(), **user}.keys():  # they depend on each other
        props |= _ON_A_CLUSTER
    if path := os.environ.get("PYTHONPATH"):
        props.setdefault("spark.executorEnv.PYTHONPATH", path)
    return {**props, **_protection({**_spark_defaults(), **props})}


def given_props(user: Mapping[str, str], context: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """The settings of a Spark context that exists already, with the user's keys of this project, and a warning for each of the user's
    ``spark.*`` keys that it does not have. Raises ConfigException for a context in which copying is not possible, or not safe.
    """
    own = {key: value for key, value in user.items() if key.startswith(_OWN)}
    late = [
        f"{key} has no effect: the Spark context of this process was created before, with "
        + ("another value." if key in context else "none.")
        for key, value in sorted(user.items())
        if key not in own and key not in ALWAYS and context.get(key) != value
    ]
    if _is_on(context, "spark.speculation"):
        raise ConfigException(
            "Invalid value true for configuration spark.speculation of the Spark context: two attempts of a task would both write."
        )
    stated = {**context, **user}
    if not (is_local(context) or is_encrypted(context) or _is_on_loopback(context) or _is_off(stated, _CRYPTO)):
        raise ConfigException(
            f"The Spark context does not encrypt its connections to other machines. If that network is trusted, set {_CRYPTO}=false."
        )
    return {**context, **own}, late


def is_encrypted(props: Mapping[str, str]) -> bool:
    """Whether Spark's connections between machines are encrypted."""
    return (_is_on(props, _AUTHENTICATE) and _is_on(props, _CRYPTO)) or _is_on(props, _SSL)


def _protection(given: Mapping[str, str]) -> dict[str, str]:
    """The settings to add for a cluster. Raises ConfigException."""
    master = given["spark.master"]
    added = {_AUTHENTICATE: "true"}
    if master.startswith("local-cluster"):
        added[_SECRET] = secrets.token_hex(32)  # its workers are in the same JVM
    if _is_on({**added, **given}, _AUTHENTICATE):
        if master.startswith("spark://") and _SECRET not in given:
            raise ConfigException(
                f"Missing required configuration {_SECRET}: connections of {master} are authenticated with the secret "
                f"of its master and workers. If every client that can reach them is trusted, set {_AUTHENTICATE}=false."
            )
        added |= {"spark.io.encryption.enabled": "true"}
        added |= {} if _is_on(given, _SSL) else {_CRYPTO: "true", **_NO_FALLBACK}
    added = {key: value for key, value in added.items() if key not in given}
    if not (is_encrypted({**added, **given}) or _is_on_loopback(given) or _is_off(given, _CRYPTO)):
        raise ConfigException(
            f"Invalid value {given[_AUTHENTICATE]} for configuration {_AUTHENTICATE}: without authentication Spark does "
            f"not encrypt its connections to other machines. If that network is trusted, set {_CRYPTO}=false, too."
        )
    return added


def _spark_defaults() -> dict[str, str]:
    """What spark-submit reads in addition to the given settings: spark-defaults.conf of the operator."""
    folder = os.environ.get("SPARK_CONF_DIR")
    if not folder and (home := os.environ.get("SPARK_HOME")):
        folder = str(Path(home) / "conf")
    file = Path(folder or "/nonexistent") / "spark-defaults.conf"
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigException(f"Cannot read {file}: {error}.") from error
    return {key: value.strip() for key, value in javaproperties.loads(text).items()}


def _is_on_loopback(props: Mapping[str, str]) -> bool:
    return props["spark.master"].startswith(_ON_LOOPBACK)


def _is_on(props: Mapping[str, str], key: str) -> bool:
    return props.get(key, "").strip().lower() == "true"


def _is_off(props: Mapping[str, str], key: str) -> bool:
    return props.get(key, "").strip().lower() == "false"
