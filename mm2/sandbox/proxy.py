"""A TCP proxy in front of one broker listener, in a process of its own, which can be told to be a bad network.

    with start_pair(folder, listeners={"PLAINTEXT": "PLAINTEXT", "PROXIED": "PLAINTEXT"}, proxied=["PROXIED"]) as (a, b):
        with Proxy.before(b, "PROXIED") as proxy:
            ... clients bootstrap at proxy.address, and B's metadata lead them back to it ...
            proxy.delay(round_trip_ms=80)

Conditions hold for connections that are open and for new ones, from the moment the call returns. Each call replaces
what was before; `heal` ends it all.
"""

import json
import os
import secrets
import socket
import sys
import time
from dataclasses import replace
from pathlib import Path
from subprocess import Popen
from types import TracebackType
from typing import Any, Self

from mm2.sandbox.errors import SandboxError
from mm2.sandbox.kafka import LocalKafka
from mm2.sandbox.ports import free_ports
from mm2.sandbox.process import end, spawn
from mm2.sandbox.relay import Conditions, Passage

_START_PATIENCE_S = 20.0
_ANSWER_PATIENCE_S = 10.0


class Proxy:
    """Passes what comes to `address` on to `upstream`, both `host:port`. `seed` decides what is left to chance.

    Not thread-safe. Raises SandboxError when its process does not start or is gone.
    """

    def __init__(self, upstream: str, log_file: Path, *, address: str | None = None, seed: int = 1) -> None:
        self.address = address or f"127.0.0.1:{free_ports(1)[0]}"
        self.upstream = upstream
        self.conditions = Conditions()
        self._log_file = log_file
        self._seed = seed
        self._control = f"mm2-proxy-{os.getpid()}-{secrets.token_hex(6)}"
        self._process: Popen[bytes] | None = None
        self._socket: socket.socket | None = None

    @classmethod
    def before(cls, broker: LocalKafka, listener: str = "PROXIED", *, seed: int = 1) -> Self:
        """A proxy for a listener that the broker was told is `proxied`."""
        log_file = broker.folder / f"proxy-{listener.lower()}.log"
        return cls(broker.address(listener), log_file, address=broker.advertised(listener), seed=seed)

    @property
    def pid(self) -> int:
        if self._process is None:
            raise SandboxError(f"The proxy at {self.address} is not running: start it first.")
        return self._process.pid

    def start(self) -> Self:
        """Does nothing when it runs."""
        if self._process is not None:
            return self
        self._log_file.parent.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-P", "-m", "mm2.sandbox.relay"]
        command += [self.address, self.upstream, self._control, str(self._seed)]
        self._process = spawn(command, output=self._log_file)
        deadline = time.monotonic() + _START_PATIENCE_S
        while True:
            control = socket.socket(socket.AF_UNIX)
            control.settimeout(_ANSWER_PATIENCE_S)
            try:
                control.connect("\0" + self._control)
                break
            except OSError:
                control.close()
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise SandboxError(f"The proxy at {self.address} did not start: {self._last_words()}") from None
                time.sleep(0.01)
        self._socket = control
        return self

    def stop(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self._process is not None:
            end(self._process)
            self._process = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, _type: type[BaseException] | None, _exc: BaseException | None, _tb: TracebackType | None
    ) -> None:
        self.stop()

    def set(self, conditions: Conditions) -> None:
        """Replaces the conditions; for those that have no method of their own and for several at once."""
        self.conditions = conditions
        self._order({"do": "set", "conditions": conditions.to_json()})

    def change(self, **changes: Any) -> None:
        """Changes some of the present conditions and keeps the others."""
        self.set(replace(self.conditions, **changes))

    def heal(self) -> None:
        """A good network again. A connection that has lost bytes does not come back: its client has to notice."""
        self.set(Conditions())

    def delay(self, *, round_trip_ms: float, window_bytes: int = 200_000) -> None:
        """A long way: half of the time in each direction, and at most so many bytes of each connection under way."""
        half = round_trip_ms / 2
        self.set(Conditions(delay_up_ms=half, delay_down_ms=half, window_bytes=window_bytes))

    def limit(self, bytes_s: float) -> None:
        """A thin line: so many bytes a second in each direction, for all connections together."""
        self.set(Conditions(rate_up_bytes_s=bytes_s, rate_down_bytes_s=bytes_s))

    def disturb(self, *, loss: float, jitter_ms: float) -> None:
        """A bad line: that share of pieces comes late by a retransmission, and all by up to `jitter_ms`."""
        self.set(Conditions(loss=loss, jitter_ms=jitter_ms))

    def freeze(self) -> None:
        """Nothing passes either way, nothing is refused, and when it heals everything goes on."""
        self.set(Conditions(up=Passage.HOLD, down=Passage.HOLD))

    def black_hole(self) -> None:
        """All that is sent disappears, connections can be made, nothing ever answers, no RST."""
        self.set(Conditions(up=Passage.SWALLOW, down=Passage.SWALLOW))

    def half_open(self) -> None:
        """Requests reach the broker, answers get lost: it was done and nobody knows."""
        self.set(Conditions(down=Passage.SWALLOW))

    def refuse(self) -> None:
        """New connections are refused and those that are open are reset."""
        self.set(Conditions(refuse=True))
        self.reset()

    def reset(self) -> int:
        """RST to both sides of all open connections; how many there were."""
        return int(self._order({"do": "reset"})["reset"])

    def cut(self, *, after_bytes: int, times: int = 1, by_fin: bool = False) -> None:
        """Ends connections in the middle of the next answers that are longer than `after_bytes`."""
        self.set(Conditions(cut_after_bytes=after_bytes, cuts=times, cut_by_fin=by_fin))

    def slice(self, piece_bytes: int) -> None:
        """Everything arrives in tiny pieces."""
        self.set(Conditions(slice_bytes=piece_bytes))

    def corrupt(self, *, every_bytes: int) -> None:
        """About one bit in so many bytes of the answers is flipped."""
        self.set(Conditions(corrupt_down_every_bytes=every_bytes))

    def repeat(self, answers: int) -> None:
        """The next short answers come twice, as from a connection that was mixed up with another one."""
        self.set(Conditions(repeats=answers))

    def look(self) -> dict[str, int]:
        """Counts: `open` connections, `accepted`, `bytes_up`, `bytes_down`, `flipped` bits, `cut`, `repeated`."""
        return self._order({"do": "look"})

    def _order(self, order: dict[str, Any]) -> dict[str, Any]:
        if self._socket is None:
            raise SandboxError(f"The proxy at {self.address} is not running: start it first.")
        try:
            self._socket.sendall(json.dumps(order).encode() + b"\n")
            answer = b""
            while not answer.endswith(b"\n"):
                part = self._socket.recv(1 << 16)
                if not part:
                    raise ConnectionError
                answer += part
        except OSError:
            raise SandboxError(f"The proxy at {self.address} does not answer: {self._last_words()}") from None
        return dict(json.loads(answer))

    def _last_words(self) -> str:
        lines = self._log_file.read_text(errors="replace").splitlines() if self._log_file.exists() else []
        return lines[-1] if lines else "it said nothing"
