"""A report as one self-contained HTML file: no scripts, fonts or images from copied_in_other_passes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Final

from mm2.evidence import VERIFIED_PAGE, utc_time
from mm2.verify.report import PartitionReport, Verdict, VerifyReport

_VERDICT_TEXTS: Final = {
    Verdict.EQUAL: VERIFIED_PAGE(),
    Verdict.DIFFERENT: "Source and target differ.",
    Verdict.INCOMPLETE: "Some partitions could not be compared.",
}
#: The names of the verdicts on the page, and their CSS classes.
_NAMES: Final = {Verdict.EQUAL: "equal", Verdict.DIFFERENT: "different", Verdict.INCOMPLETE: "incomplete"}
_WORST_FIRST: Final = (Verdict.DIFFERENT, Verdict.INCOMPLETE, Verdict.EQUAL)
#: The colours, sizes and shapes of the dashboard (`mm2/ui/dashboard.css`).
_STYLE: Final = """
:root {
  color-scheme: light dark; --paper: light-dark(#fbfaf7, #15181b); --ink: light-dark(#1d2328, #e9e6df);
  --muted: light-dark(#5a6269, #a1a7ab); --line: light-dark(#dfdcd4, #30363b); --ok: light-dark(#00664f, #62c7a4);
  --warning: light-dark(#825700, #e6b450); --bad: light-dark(#a8201a, #ff8f80);
}
body {
  font: 400 15px/1.5 Roboto, system-ui, -apple-system, "Segoe UI", sans-serif; font-variant-numeric: tabular-nums;
  background: var(--paper); color: var(--ink); margin: 2rem auto; max-width: 80rem; padding: 0 1.5rem 4rem;
}
h1, h2 { font-size: 1.05rem; font-weight: 500; margin: 2.2rem 0 .6rem; } h1 { margin: 0; }
.verdict { font-size: clamp(1.55rem, 1.1rem + 2.1vw, 2.6rem); line-height: 1.2; font-weight: 300; margin: .55rem 0 1.3rem; }
.equal { color: var(--ok); } .incomplete { color: var(--warning); } .different { color: var(--bad); }
td.equal::before, td.incomplete::before, td.different::before {
  content: ""; display: inline-block; width: .62em; height: .62em; margin-right: .5em; background: currentColor;
}
td.equal::before { border-radius: 50%; } td.incomplete::before { clip-path: polygon(50% 0, 100% 50%, 50% 100%, 0 50%); }
td.different::before { clip-path: polygon(50% 0, 100% 100%, 0 100%); }
.wide { overflow-x: auto; } table { border-collapse: collapse; width: 100%; font-size: .93rem; }
th { color: var(--muted); font-weight: 400; font-size: .87rem; }
th, td { border-bottom: 1px solid var(--line); padding: .42rem .9rem .42rem 0; text-align: left; vertical-align: top; }
td.n, th.n { text-align: right; }
"""


def page(report: VerifyReport) -> str:
    """The HTML of a report. All text from a cluster is escaped."""
    facts = {
        "Began": f"{utc_time(report.began_ms)}, took {report.seconds:,.1f} s",
        "Records found on both sides": f"{report.records:,}",
        "Bytes read from both sides": f"{report.bytes:,}",
        "Range": "everything" if report.is_everything else "as requested, see the offsets",
    }
    if report.changed_by:
        facts["Applied to the source's records"] = "; ".join(
            filter(None, (", ".join(report.changed_by), report.not_repeatable))
        )
    parts = [
        "<!DOCTYPE html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>mm2 verify {escape(report.flow)}</title><style>{_STYLE}</style></head><body>",
        f"<h1>mm2 verify {escape(report.flow)}</h1>",
        f'<p class="verdict {_NAMES[report.verdict]}">{_text(report)}</p>',
        _table(("", ""), list(facts.items()), head=False),
        _counts("Differences", "kind", report.counts),
        _counts("Explained", "reason", report.explained),
        "<h2>Partitions</h2>",
        _partitions(report.partitions),
    ]
    parts += [_one(partition) for partition in report.partitions if partition.differences or partition.notes]
    parts.append("</body></html>")
    return "\n".join(filter(None, parts)) + "\n"


def _text(report: VerifyReport) -> str:
    return _VERDICT_TEXTS[report.verdict] if report.has_compared else VERIFIED_PAGE(is_known=False)


def _counts(title: str, what: str, counts: Mapping[str, int]) -> str:
    if not counts:
        return ""
    return f"<h2>{title}</h2>" + _table((what, "records"), [(name, f"{count:,}") for name, count in counts.items()])


def _partitions(partitions: Sequence[PartitionReport]) -> str:
    header = ("partition", "verdict", "source offsets", "records", "differences", "matched by", "error")
    rows = [
        (
            str(one.source),
            _NAMES[one.verdict],
            f"{one.first:,} to {one.after - 1:,}" if one.after > one.first else "none",
            f"{one.records:,}",
            f"{sum(one.counts.values()):,}",
            str(one.certainty),
            one.error,
        )
        for one in sorted(partitions, key=lambda one: _WORST_FIRST.index(one.verdict))
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
    more = f"<p>{total - listed:,} more records are not listed.</p>" if total > listed else ""
    return text + _table(("difference", "source offset", "target offset", "records", "what"), rows) + more


def _table(header: Sequence[str], rows: Iterable[Sequence[str]], *, head: bool = True) -> str:
    """A table. Columns of numbers are right-aligned with their heads; verdicts have their colour and shape."""
    rows = list(rows)
    columns = list(zip(*rows, strict=True))
    numbers = [head and any(column) and all(map(_is_number, column)) for column in columns]
    lines = ['<div class="wide"><table>']
    if head:
        heads = zip(header, numbers, strict=True)
        lines.append("<tr>" + "".join(_cell("th", text, "n" if number else "") for text, number in heads) + "</tr>")
    verdicts = set(_NAMES.values())
    for row in rows:
        kinds = (text if text in verdicts else "n" if number else "" for text, number in zip(row, numbers, strict=True))
        lines.append("<tr>" + "".join(_cell("td", text, kind) for text, kind in zip(row, kinds, strict=True)) + "</tr>")
    return "\n".join([*lines, "</table></div>"])


def _is_number(text: str) -> bool:
    return not text or text.replace(",", "").isdigit()


def _cell(tag: str, text: str, kind: str) -> str:
    return f'<{tag} class="{kind}">{escape(text)}</{tag}>' if kind else f"<{tag}>{escape(text)}</{tag}>"
