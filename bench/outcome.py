"""The result of one run of one contender."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Figure:
    """One number: its name, unit included, and how it is written."""

    name: str
    digits: int = 0

    def text(self, value: float | None) -> str:
        return "-" if value is None else f"{value:,.{self.digits}f}"


@dataclass(frozen=True)
class Outcome:
    """`contender` is its short name; `figures` are by the name of the Figure. A `failure` is the reason why there are none."""

    contender: str
    figures: Mapping[str, float] = field(default_factory=dict)
    notes: Sequence[str] = ()
    failure: str = ""
