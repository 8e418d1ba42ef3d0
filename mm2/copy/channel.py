"""The progress channel: lines of JSON over loopback or the cluster's network, authenticated both ways, never pickle.

==== driver ============================= executor ====================================
  {"nonce": n}                       ->
                                     <-   {"batch": b, "attempt": a, "nonce": m, "mac": HMAC(secret, "executor" n b a)}
  {"mac": HMAC(secret, "driver" m),
   "spec": the job}                  ->                     (either side hangs up when the other's mac is wrong)
                                     <-   {"type": "ready"}            connections open, nothing read yet
  {"type": "lease", "offsets": ...}  ->                     granted once per batch; before it nothing is written
                                     <-   {"type": "progress", ...}    every second, renews the lease
                                     <-   {"type": "log", ...}         a log line, said by the driver
  {"type": "go"}                     ->                     the answer; none for 5 s means the lease is over
  {"type": "throttle" | "pause", …}  ->                     other limits, other partitions that are not to be read
  {"type": "stop", "drain_s": t}     ->                     finish: read no more, wait for acks (at most t), commit
                                     <-   {"type": "final", ...}       nothing is written after it
                                     <-   {"type": "failed", "reason": ...}    instead, when it ends by an error of its own
=======================================================================================

Progress and the final report hold what has changed of the partitions (`PartitionProgress`), and what was counted of record
batches in this micro-batch so far (``tally``, `mm2.copy.tally`).

The end of the connection means stop as well: an executor whose driver is gone copies nothing more.

Off this machine all of it goes through TLS, since the job holds the clusters' credentials. There is no authority to ask:
the driver makes a certificate when it starts, and its fingerprint reaches the executor beside the secret.
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
    """Seconds, for leases: on a clock that goes on while the machine sleeps."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)


def nonce() -> str:
    """A fresh challenge."""
    return secrets.token_hex(16)


def proof(secret: str, *parts: object) -> str:
    """HMAC-SHA256 over the parts, hex."""
    return hmac.new(bytes.fromhex(secret), "\0".join(map(str, parts)).encode(), hashlib.sha256).hexdigest()


def proves(mac: object, secret: str, *parts: object) -> bool:
    """Constant-time check of a proof."""
    return isinstance(mac, str) and hmac.compare_digest(mac, proof(secret, *parts))


def client_tls() -> ssl.SSLContext:
    """What an executor connects with. It trusts nobody yet: call `verify_pin` before the first word."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def fingerprint(certificate: bytes) -> str:
    """SHA-256 of a certificate (DER), hex."""
    return hashlib.sha256(certificate).hexdigest()


def verify_pin(connection: ssl.SSLObject | ssl.SSLSocket, wanted: str) -> None:
    """Raises ValueError when the other side does not have the certificate of that fingerprint."""
    certificate = connection.getpeercert(binary_form=True)
    if certificate is None or not hmac.compare_digest(fingerprint(certificate), wanted):
        message = "whoever answered on the progress channel does not have our driver's certificate"
        raise ValueError(message)


def encode(message: dict[str, Any]) -> bytes:
    """One message as a line."""
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def decode(line: bytes) -> dict[str, Any]:
    """One line as a message; ValueError for anything but a JSON object on a whole line."""
    if not line.endswith(b"\n"):
        message = "the progress channel ended in the middle of a line"
        raise ValueError(message)
    found = json.loads(line)
    if not isinstance(found, dict):
        message = "a line of the progress channel is no JSON object"
        raise ValueError(message)  # noqa: TRY004  (callers treat every malformed line alike)
    return found
