"""Conditions of a comparison: default, exactly-once, TLS, high latency."""

from dataclasses import dataclass

#: Bytes in flight per connection with high latency, as a TCP window of that size allows.
WINDOW_BYTES = 200_000


@dataclass(frozen=True)
class Conditions:
    """Conditions for all contenders. `rtt_ms` is the round-trip time to the target; the source is local."""

    exactly_once: bool = False
    tls: bool = False
    rtt_ms: int = 0

    @property
    def title(self) -> str:
        """Empty for the default conditions."""
        parts = (
            "exactly-once" if self.exactly_once else "",
            "TLS on both sides" if self.tls else "",
            f"{self.rtt_ms} ms round trip to the target, {WINDOW_BYTES // 1000} KB per connection"
            if self.rtt_ms
            else "",
        )
        return ", ".join(filter(None, parts))


PLAIN = Conditions()
