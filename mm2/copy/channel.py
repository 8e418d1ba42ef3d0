"""The progress channel: lines of JSON over loopback or the cluster's network, with mutual authentication, never pickle.

==== driver ============================= executor ====================================
  {"nonce": n}                       ->
                                     <-   {"batch": b, "attempt": a, "nonce": m, "mac": HMAC(secret, "executor" n b a)}
  {"mac": HMAC(secret, "driver" m),
   "spec": the job}                  ->                     (a side that gets a wrong mac disconnects)
                                     <-   {"type": "ready"}            connections open, nothing read yet
  {"type": "lease"}                  ->                     granted once per batch; nothing is written before it
  {"type": "start", "starts": ...}   ->                     where partitions begin; again for those that another lane gives away
                                     <-   {"type": "progress", ...}    every second, renews the lease
                                     <-   {"type": "log", ...}         a log line, written by the driver
  {"type": "go"}                     ->                     the answer; after 5 s without it the lease has expired
  {"type": "throttle" | "pause", …}  ->                     new limits; new set of paused partitions
  {"type": "stop", "drain_s": t}     ->                     stop reading, wait for acks (at most t), commit
                                     <-   {"type": "final", ...}       nothing is written after it
                                     <-   {"type": "failed", "reason": ...}    instead, after an internal error
=======================================================================================

Progress and the final report contain the partitions that have changed (`PartitionProgress`) and the counts of record batches of this
micro-batch (``tally``, `mm2.copy.tally`). When the connection is closed, the executor stops.

Between machines the channel uses TLS, because the job contains the clusters' credentials. There is no certificate authority: the
driver creates a certificate when it starts, and the executor receives its fingerprint together with the secret.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import ssl
import time
from typing import Any, Final

MAX_LINE_BYTES: Final = 64 << 20
LEASE_TIMEOUT_S: Final = 5.0
REPORT_INTERVAL_S: Final = 1.0


def now_s() -> float:
    """Seconds for leases, on a clock that also runs while the machine is suspended."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)


def nonce() -> str:
    """A new challenge."""
    return secrets.token_hex(16)


def proof(secret: str, *parts: object) -> str:
    """HMAC-SHA256 over the parts, hex."""
    return hmac.new(bytes.fromhex(secret), "\0".join(map(str, parts)).encode(), hashlib.sha256).hexdigest()


def proves(mac: object, secret: str, *parts: object) -> bool:
    """Check a proof in constant time."""
    return isinstance(mac, str) and hmac.compare_digest(mac, proof(secret, *parts))


def client_tls() -> ssl.SSLContext:
    """The TLS context of an executor. It verifies no certificate: call `verify_pin` before sending anything."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def fingerprint(certificate: bytes) -> str:
    """SHA-256 of a certificate (DER), hex."""
    return hashlib.sha256(certificate).hexdigest()


def verify_pin(connection: ssl.SSLObject | ssl.SSLSocket, wanted: str) -> None:
    """Raise ValueError when the peer's certificate does not have this fingerprint."""
    certificate = connection.getpeercert(binary_form=True)
    if certificate is None or not hmac.compare_digest(fingerprint(certificate), wanted):
        message = "the progress channel was answered with another certificate than the driver's"
        raise ValueError(message)


def encode(message: dict[str, Any]) -> bytes:
    """Encode a message as one line."""
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def decode(line: bytes) -> dict[str, Any]:
    """Decode one line. Raises ValueError for anything but a complete line with a JSON object."""
    if not line.endswith(b"\n"):
        message = "the progress channel was closed in the middle of a line"
        raise ValueError(message)
    found = json.loads(line)
    if not isinstance(found, dict):
        message = "a line of the progress channel is not a JSON object"
        raise ValueError(message)  # noqa: TRY004  (callers handle every malformed line the same way)
    return found
