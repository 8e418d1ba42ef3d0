"""Where executors connect back to: accepts, authenticates, and hands lines to their batches."""

from __future__ import annotations

import socket
import threading
import time
from collections import deque

import structlog

from mm2.copy import channel
from mm2.copy.driver.batch import Batch

_HANDSHAKE_TIMEOUT_S = 10.0
_MAX_HANDSHAKE_BYTES = 4096
_ACCEPT_PAUSE_S = 0.2
#: A task that was cancelled while Spark started it may still come; it is no stranger.
_FORGOTTEN_KEPT = 1024


class ChannelServer:
    """One listening socket for all lanes of the process, one thread per connected executor."""

    def __init__(self, host: str) -> None:
        self._batches: dict[str, Batch] = {}
        self._forgotten: deque[str] = deque(maxlen=_FORGOTTEN_KEPT)
        self._lock = threading.Lock()
        self._socket = socket.create_server((host, 0), backlog=512)
        self._log = structlog.get_logger(__name__)
        threading.Thread(target=self._accept, name="copy-channel", daemon=True).start()

    @property
    def address(self) -> tuple[str, int]:
        """Host and port for executors."""
        host, port = self._socket.getsockname()[:2]
        return str(host), int(port)

    def expect(self, batch: Batch) -> None:
        """Let the executor of this batch in."""
        with self._lock:
            self._batches[batch.id] = batch

    def forget(self, batch: Batch) -> None:
        """Let it in no more."""
        with self._lock:
            if self._batches.pop(batch.id, None) is not None:
                self._forgotten.append(batch.id)

    def close(self) -> None:
        """Stop listening; connections end with their batches."""
        self._socket.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
                threading.Thread(target=self._serve, args=(connection,), name="copy-channel-peer", daemon=True).start()
            except (OSError, RuntimeError) as error:
                if self._socket.fileno() < 0:
                    return
                # Out of files or threads for a moment; without us no executor would ever be let in again.
                self._log.warning("an executor could not be let in", error=str(error))
                time.sleep(_ACCEPT_PAUSE_S)

    def _serve(self, connection: socket.socket) -> None:
        batch = None
        try:
            connection.settimeout(_HANDSHAKE_TIMEOUT_S)
            with connection, connection.makefile("rb") as lines:
                challenge = channel.nonce()
                connection.sendall(channel.encode({"nonce": challenge}))
                hello = channel.decode(lines.readline(_MAX_HANDSHAKE_BYTES))
                with self._lock:
                    known = self._batches.get(str(hello.get("batch")))
                parts = ("executor", challenge, hello.get("batch"), hello.get("attempt"))
                if known is None and hello.get("batch") in self._forgotten:
                    self._log.info("a cancelled copy task was turned away")
                    return
                if known is None or not channel.proves(hello.get("mac"), known.secret, *parts):
                    self._log.warning(
                        "somebody without the right proof asked for a copy job", peer=connection.getpeername()[0]
                    )
                    return
                if not known.attach(connection):
                    self._log.info("a second attempt of a copy task was turned away", batch=known.name)
                    return
                batch = known
                mac = channel.proof(batch.secret, "driver", hello.get("nonce"))
                connection.sendall(channel.encode({"mac": mac, "spec": batch.spec.to_json()}))
                connection.settimeout(None)
                while line := lines.readline(channel.MAX_LINE_BYTES):
                    batch.received(channel.decode(line))
            batch.ended("the executor closed the progress channel")
        except (OSError, ValueError, KeyError, TypeError) as error:
            if batch is not None:
                batch.ended(f"the progress channel broke: {error}")
