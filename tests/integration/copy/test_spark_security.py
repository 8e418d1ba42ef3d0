"""What other users of the machine can do to Spark in local mode."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from py4j.java_gateway import GatewayParameters, JavaGateway
from py4j.protocol import Py4JError

from mm2.copy.driver.engine import CopyEngine
from tests.integration.spark_attacker import security_manager, spark_classes, stop_executor
from tests.support.waiting import wait_until

_START_S = 600.0


@pytest.fixture(scope="module")
def attacker() -> Iterator[Any]:
    with spark_classes() as java:
        yield java


@pytest.fixture
def engine(request: pytest.FixtureRequest) -> Iterator[CopyEngine]:
    engine = CopyEngine(getattr(request, "param", {}))
    engine.start()
    try:
        yield engine
    finally:
        engine.stop()


def port_of(engine: CopyEngine) -> int:
    return int(engine.spark.context(_START_S).getConf().get("spark.driver.port"))


def processes(engine: CopyEngine) -> list[psutil.Process]:
    jvm = psutil.Process(engine.spark.pid)
    return [jvm, *jvm.children(recursive=True)]


def listening(engine: CopyEngine) -> dict[int, set[str]]:
    """The addresses on which each of Spark's processes listens."""
    return {
        process.pid: {one.laddr.ip for one in process.net_connections("inet") if one.status == psutil.CONN_LISTEN}
        for process in processes(engine)
    }


def secret_of(engine: CopyEngine) -> str:
    """The generated secret, read where the JVM keeps it."""
    context = engine.spark.context(_START_S)
    return str(security_manager(context._jvm, context._jsc.getConf()).getSecretKey())


def test_another_user_cannot_stop_the_executor(engine: CopyEngine, attacker: Any) -> None:
    context = engine.spark.context(_START_S)
    wrong = {"spark.authenticate": "true", "spark.network.crypto.enabled": "true"}
    for settings in (None, wrong | {"spark.authenticate.secret": "a-wrong-secret"}):
        with pytest.raises(Py4JError):
            stop_executor(attacker, port_of(engine), settings)
        assert context.parallelize([1, 2], 1).map(str).collect() == ["1", "2"]


def test_the_secret_is_new_at_each_start_and_nowhere_to_be_read(engine: CopyEngine) -> None:
    context = engine.spark.context(_START_S)
    context.parallelize([1], 1).map(str).collect()
    secret = secret_of(engine)
    assert len(secret) >= 64
    assert not [pair for pair in context.getConf().getAll() if secret in pair[1]]
    for process in processes(engine):
        assert not [word for word in process.cmdline() if secret in word]
        assert not [name for name, value in process.environ().items() if secret in value]
    os.kill(engine.spark.pid or 0, 9)
    engine.spark.check_jvm()
    assert secret_of(engine) != secret


def test_authentication_cannot_be_disabled_on_this_machine() -> None:
    assert CopyEngine({"spark.authenticate": "false"})._props["spark.authenticate"] == "true"


@pytest.mark.parametrize("engine", [{"spark.ui.enabled": "true", "spark.ui.port": "0"}], indirect=True)
def test_spark_listens_on_loopback_only_and_its_python_workers_on_no_port(engine: CopyEngine) -> None:
    context = engine.spark.context(_START_S)
    context.parallelize([1], 1).map(str).collect()
    jvm, *others = processes(engine)
    found = listening(engine)
    assert {address.removeprefix("::ffff:") for address in found[jvm.pid]} == {"127.0.0.1"}
    assert others, "the daemon of the Python workers"
    assert [found[process.pid] for process in others] == [set() for _ in others]
    folder = Path(context.getConf().get("spark.python.unix.domain.socket.dir"))
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert len(list(folder.iterdir())) <= 3, "sockets of results are removed"
    engine.stop()
    assert not folder.exists()


def test_the_gateway_to_the_jvm_rejects_clients_without_its_token(engine: CopyEngine) -> None:
    context = engine.spark.context(_START_S)
    parameters = context._gateway.gateway_parameters
    assert parameters.auth_token
    stranger = JavaGateway(gateway_parameters=GatewayParameters(port=parameters.port, auth_token="wrong"))
    with pytest.raises(Py4JError):
        stranger.jvm.java.lang.System.getProperty("user.name")
    stranger.close()
    with contextlib.closing(socket.create_connection((parameters.address, parameters.port), 10)) as connection:
        connection.sendall(b"c\nz:java.lang.System\ngetProperty\nsuser.name\ne\n")
        assert not connection.recv(1000).startswith(b"!y"), "no result without a token"


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_clients_without_a_token_cannot_exhaust_the_memory_or_end_spark(engine: CopyEngine, capfd: Any) -> None:
    """Endless lines to the gateway, and messages of 2 GB to Spark's ports, before any authentication."""
    context = engine.spark.context(_START_S)
    jvm = psutil.Process(engine.spark.pid)
    ports = {one.laddr.port for one in jvm.net_connections("inet") if one.status == psutil.CONN_LISTEN}
    assert len(ports) == 3
    over = threading.Event()
    sent = dict.fromkeys(ports, 0)

    def flood(port: int) -> None:
        block = struct.pack(">Q", 2**31 - 100) + bytes(b"A" * 2**20)  # for the gateway: a line without an end
        while not over.is_set():
            with (
                contextlib.suppress(OSError),
                contextlib.closing(socket.create_connection(("127.0.0.1", port), 10)) as connection,
            ):
                while not over.is_set():
                    connection.sendall(block)
                    sent[port] += len(block)

    threads = [threading.Thread(target=flood, args=(port,)) for port in ports for _ in range(10)]
    for thread in threads:
        thread.start()
    most = 0
    try:
        end = time.monotonic() + 30
        while time.monotonic() < end:
            assert context.parallelize([1, 2], 1).map(str).collect() == ["1", "2"]
            most = max(most, jvm.memory_info().rss)
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert min(sent.values()) > 500 * 2**20, sent
    assert most < 900 * 2**20
    assert engine.spark.pid == jvm.pid, "the same JVM"
    wait_until(lambda: context.parallelize([1], 1).map(str).collect() == ["1"])
    assert len(capfd.readouterr().err.splitlines()) < 450, "at most 200 lines a minute"
