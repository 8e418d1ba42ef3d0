"""Conditions of a comparison: default, exactly-once, TLS, high latency, a transformation."""

from dataclasses import dataclass

#: Bytes in flight per connection with high latency, as a TCP window of that size allows.
WINDOW_BYTES = 200_000


@dataclass(frozen=True)
class Conditions:
    """Conditions for all contenders. `rtt_ms` is the round-trip time to the target; the source is local.

    `insert_header` adds a header to every record, by the transformation InsertHeader.
    """

    exactly_once: bool = False
    tls: bool = False
    rtt_ms: int = 0
    insert_header: bool = False

    @property
    def title(self) -> str:
        """Empty for the default conditions."""
        parts = (
            "exactly-once" if self.exactly_once else "",
            "TLS on both sides" if self.tls else "",
            f"{self.rtt_ms} ms round trip to the target, {WINDOW_BYTES // 1000} KB per connection"
            if self.rtt_ms
            else "",
            "each record with InsertHeader" if self.insert_header else "",
        )
        return ", ".join(filter(None, parts))


PLAIN = Conditions()
