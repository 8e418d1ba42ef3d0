"""A TCP proxy in front of one broker listener, in its own process, that simulates network faults.

with start_pair(folder, listeners={"PLAINTEXT": "PLAINTEXT", "PROXIED": "PLAINTEXT"}, proxied=["PROXIED"]) as (a, b):
with Proxy.before(b, "PROXIED") as proxy: ... clients bootstrap at proxy.address, and B's metadata lists the same
address ... proxy.delay(round_trip_ms=80)

Conditions apply to open and new connections once the call returns. Each call replaces the previous conditions; `heal`
removes all of them.
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
from typing import Any, Self

from mm2.sandbox.errors import SandboxError
from mm2.sandbox.kafka import LocalKafka
from mm2.sandbox.ports import free_ports
from mm2.sandbox.process import Startable, end, spawn
from tests.support import relay
from tests.support.relay import Conditions, Passage

_START_PATIENCE_S = 20.0
_ANSWER_PATIENCE_S = 10.0


class Proxy(Startable):
    """Relays connections from `address` to `upstream`, both `host:port`. `seed` makes random faults reproducible.

    Not thread-safe. Raises SandboxError when its process does not start or has died.
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
        """A proxy for a `proxied` listener of the broker."""
        log_file = broker.folder / f"proxy-{listener.lower()}.log"
        return cls(broker.address(listener), log_file, address=broker.advertised(listener), seed=seed)

    @property
    def pid(self) -> int:
        if self._process is None:
            raise SandboxError(f"The proxy at {self.address} is not running: start it first.")
        return self._process.pid

    def start(self) -> Self:
        """Start the proxy; does nothing when it is running."""
        if self._process is not None:
            return self
        self._log_file.parent.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-P", relay.__file__]
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

    def set(self, conditions: Conditions) -> None:
        """Replace the conditions; for conditions without a method of their own and for combinations."""
        self.conditions = conditions
        self._order({"do": "set", "conditions": conditions.to_json()})

    def change(self, **changes: Any) -> None:
        """Change some of the current conditions and keep the others."""
        self.set(replace(self.conditions, **changes))

    def heal(self) -> None:
        """Remove all conditions. Connections that have lost bytes stay broken: the client has to notice."""
        self.set(Conditions())

    def delay(self, *, round_trip_ms: float, window_bytes: int = 200_000) -> None:
        """Delay both directions by half of the round trip, with at most that many bytes in flight per connection."""
        half = round_trip_ms / 2
        self.set(Conditions(delay_up_ms=half, delay_down_ms=half, window_bytes=window_bytes))

    def limit(self, bytes_s: float) -> None:
        """Limit the bytes per second in each direction, for all connections together."""
        self.set(Conditions(rate_up_bytes_s=bytes_s, rate_down_bytes_s=bytes_s))

    def disturb(self, *, loss: float, jitter_ms: float) -> None:
        """Delay that share of pieces by a retransmission, and all pieces by up to `jitter_ms`."""
        self.set(Conditions(loss=loss, jitter_ms=jitter_ms))

    def freeze(self) -> None:
        """Block both directions without refusing connections; `heal` delivers everything."""
        self.set(Conditions(up=Passage.HOLD, down=Passage.HOLD))

    def black_hole(self) -> None:
        """Drop all bytes without RST; connections are still accepted."""
        self.set(Conditions(up=Passage.SWALLOW, down=Passage.SWALLOW))

    def half_open(self) -> None:
        """Deliver requests to the broker and drop its answers, so that clients do not know the result."""
        self.set(Conditions(down=Passage.SWALLOW))

    def refuse(self) -> None:
        """Refuse new connections and reset open ones."""
        self.set(Conditions(refuse=True))
        self.reset()

    def reset(self) -> int:
        """Send RST to both sides of all open connections; returns how many there were."""
        return int(self._order({"do": "reset"})["reset"])

    def cut(self, *, after_bytes: int, times: int = 1, by_fin: bool = False) -> None:
        """Close connections in the middle of the next answers that are longer than `after_bytes`."""
        self.set(Conditions(cut_after_bytes=after_bytes, cuts=times, cut_by_fin=by_fin))

    def slice(self, piece_bytes: int) -> None:
        """Deliver all bytes in tiny pieces."""
        self.set(Conditions(slice_bytes=piece_bytes))

    def corrupt(self, *, every_bytes: int) -> None:
        """Flip about one bit in that many bytes of the answers."""
        self.set(Conditions(corrupt_down_every_bytes=every_bytes))

    def repeat(self, answers: int) -> None:
        """Send the next short answers twice, as if a connection were mixed up with another one."""
        self.set(Conditions(repeats=answers))

    def counters(self) -> dict[str, int]:
        """Return counts: `open` connections, `accepted`, `bytes_up`, `bytes_down`, `flipped` bits, `cut`, `repeated`."""
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
        return lines[-1] if lines else "it printed nothing"
