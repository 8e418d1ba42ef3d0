"""A report as one HTML file that needs nothing else: no script, no font, no picture from elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Final

from mm2.verify.report import PartitionReport, Report, Verdict, moment

_SENTENCES: Final = {
    Verdict.EQUAL: "Source and target are equal: whatever is not on both sides is explained.",
    Verdict.DIFFERENT: "Source and target differ.",
    Verdict.TROUBLE: "Some of it could not be compared.",
}
_STYLE: Final = """
:root { color-scheme: light dark; --line: #8884; --well: #0a7d4f; --bad: #c2361c; --odd: #9a6700; }
@media (prefers-color-scheme: dark) { :root { --well: #4cc38a; --bad: #ff8a70; --odd: #e3b341; } }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem; padding: 0 1rem; }
h1 { font-size: 1.4rem; margin-bottom: 0; } h2 { font-size: 1.1rem; margin-top: 2rem; }
.verdict { font-size: 1.1rem; font-weight: 600; } .equal { color: var(--well); }
.different { color: var(--bad); } .trouble { color: var(--odd); }
.wide { overflow-x: auto; } table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { border-bottom: 1px solid var(--line); padding: .3rem .8rem .3rem 0; text-align: left; vertical-align: top; }
td.n, th.n { text-align: right; }
"""


def page(report: Report) -> str:
    """The file. Everything that comes from a cluster is escaped."""
    facts = {
        "Began": f"{moment(report.began_ms)}, took {report.seconds:,.1f} s",
        "Records found on both sides": f"{report.records:,}",
        "Bytes read from both sides": f"{report.bytes:,}",
        "Range": "everything" if report.is_everything else "as asked for, see the offsets",
    }
    parts = [
        "<!DOCTYPE html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>mm2 verify {escape(report.flow)}</title><style>{_STYLE}</style></head><body>",
        f"<h1>mm2 verify {escape(report.flow)}</h1>",
        f'<p class="verdict {report.verdict}">{_SENTENCES[report.verdict]}</p>',
        _table(("", ""), list(facts.items()), head=False),
        _counts("Differences", "kind", report.counts),
        _counts("Explained", "reason", report.explained),
        "<h2>Partitions</h2>",
        _partitions(report.partitions),
    ]
    parts += [_one(partition) for partition in report.partitions if partition.differences or partition.notes]
    parts.append("</body></html>")
    return "\n".join(filter(None, parts)) + "\n"


def _counts(title: str, what: str, counts: Mapping[str, int]) -> str:
    if not counts:
        return ""
    return f"<h2>{title}</h2>" + _table((what, "records"), [(name, f"{count:,}") for name, count in counts.items()])


def _partitions(partitions: Sequence[PartitionReport]) -> str:
    header = ("partition", "verdict", "source offsets", "records", "differences", "known by", "")
    rows = [
        (
            str(one.source),
            str(one.verdict),
            f"{one.first:,} to {one.after - 1:,}" if one.after > one.first else "none",
            f"{one.records:,}",
            f"{sum(one.counts.values()):,}",
            str(one.certainty),
            one.trouble,
        )
        for one in partitions
    ]
    return _table(header, rows)


def _one(partition: PartitionReport) -> str:
    text = f"<h2>{escape(str(partition.source))}</h2>"
    text += "".join(f"<p>{escape(note)}</p>" for note in partition.notes)
    rows = [
        (
            str(one.kind),
            "" if one.source is None else f"{one.source:,}",
            "" if one.target is None else f"{one.target:,}",
            f"{one.records:,}",
            one.detail,
        )
        for one in partition.differences
    ]
    if not rows:
        return text
    total = sum(partition.counts.values())
    listed = sum(one.records for one in partition.differences)
    more = f"<p>{total - listed:,} more are not listed.</p>" if total > listed else ""
    return text + _table(("difference", "source offset", "target offset", "records", "what"), rows) + more


def _table(header: Sequence[str], rows: Iterable[Sequence[str]], *, head: bool = True) -> str:
    """Cells that are numbers end at the right; verdicts have their colour."""
    lines = ['<div class="wide"><table>']
    if head:
        lines.append("<tr>" + "".join(f"<th>{escape(cell)}</th>" for cell in header) + "</tr>")
    verdicts = set(Verdict)
    for row in rows:
        cells = []
        for cell in row:
            kind = cell if cell in verdicts else "n" if cell.replace(",", "").isdigit() else ""
            cells.append(f'<td class="{kind}">{escape(cell)}</td>' if kind else f"<td>{escape(cell)}</td>")
        lines.append("<tr>" + "".join(cells) + "</tr>")
    return "\n".join([*lines, "</table></div>"])
