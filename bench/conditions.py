"""Under which conditions contenders race: plain, exactly-once, over TLS, far away."""

from dataclasses import dataclass

#: What one connection may have under way on a long way, as a TCP window of that size would allow.
WINDOW_BYTES = 200_000


@dataclass(frozen=True)
class Conditions:
    """The same for all contenders of a race. `rtt_ms` is the round trip to the target; the source is near."""

    exactly_once: bool = False
    tls: bool = False
    rtt_ms: int = 0

    @property
    def title(self) -> str:
        """Empty when nothing is out of the ordinary."""
        said = (
            "exactly-once" if self.exactly_once else "",
            "TLS on both sides" if self.tls else "",
            f"{self.rtt_ms} ms round trip to the target, {WINDOW_BYTES // 1000} KB per connection"
            if self.rtt_ms
            else "",
        )
        return ", ".join(filter(None, said))


PLAIN = Conditions()
