"""Tables of the verbs: columns of minimum width, and a limited number of rows, the most urgent ones first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TextIO

from mm2.cli.common.terminal import visible_cell
from mm2.observer.views import Risk

#: With more partitions, tables have one line for each topic.
COLLAPSED_ABOVE: Final = 50
#: The rows of a `short_table`.
MOST_ROWS: Final = 50
#: An option that limits no table.
ALL_ROWS: Final = "--output wide"


@dataclass(frozen=True, slots=True)
class TableRow:
    """A row of a `short_table`. ``urgency``: None if the row needs no attention; lower ones are shown first."""

    cells: tuple[str, ...]
    urgency: tuple[float, ...] | None = None


def short_table(
    out: TextIO,
    header: tuple[str, ...],
    rows: Sequence[TableRow],
    *,
    things: str,
    well: str,
    hint: str = ALL_ROWS,
    left: int = 1,
) -> None:
    """Print the rows that need attention, then others, `MOST_ROWS` at most, and how many are left out.

    ``things``: what the rows are, in the plural. ``well``: what the rows without urgency have in common. ``hint``: how to
    see all rows.
    """
    ordered = sorted(rows, key=lambda row: (row.urgency is None, row.urgency or ()))
    shown, hidden = ordered[:MOST_ROWS], ordered[MOST_ROWS:]
    table(out, header, [row.cells for row in shown], left=left)
    if hidden:
        fine = sum(row.urgency is None for row in hidden)
        share = "all" if fine == len(hidden) else f"{number(fine) if fine else 'none'} of them"
        out.write(f"… and {number(len(hidden))} more {things}, {share} {well}: {hint}\n")


def table(
    out: TextIO, header: tuple[str, ...], rows: Sequence[tuple[str, ...]], *, left: int = 1, is_last_left: bool = True
) -> None:
    """Print columns with their minimum width. Cells are on one line, and shortened if they are very long.

    The first ``left`` are left-aligned, the others right-aligned; the last one left-aligned, too, if ``is_last_left``.
    """
    shown = [tuple(map(visible_cell, row)) for row in (header, *rows)]
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    for row in shown:
        cells = [
            cell.ljust(width) if index < left or (is_last_left and index == len(row) - 1) else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        out.write("  ".join(cells).rstrip() + "\n")


def number(value: int | None) -> str:
    """A number with commas; a dash if unknown."""
    return "-" if value is None else f"{value:,}"


def records_at_risk(risk: Risk) -> str:
    """The records at risk; "at least" if some may not be known; a dash if none are."""
    return at_least(risk.least, is_exact=risk.records is not None)


def seconds_at_risk(risk: Risk) -> str:
    """The age in seconds of the oldest record at risk; "at least" if there may be an older one; a dash if unknown."""
    if risk.least_seconds is None:
        return "-"
    return f"{'at least ' if risk.seconds is None else ''}{risk.least_seconds:,.1f}"


def at_least(records: int | None, *, is_exact: bool) -> str:
    """A number of records; "at least" if there may be more; a dash if unknown."""
    return number(records) if is_exact or records is None else f"at least {number(records)}"
