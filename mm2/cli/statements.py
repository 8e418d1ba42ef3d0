"""Generates docs/reference/statements.md: ``python -m mm2.cli.statements > docs/reference/statements.md``. A test compares the two."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import fields
from typing import Final

from mm2.evidence import READ, STATEMENTS, Evidence
from mm2.metrics.flows import FLOW_METRICS
from mm2.observer.views import FlowView

_HEAD: Final = """# Statements and their evidence

What `mm2`, the dashboard, REST and the metrics state about clusters, what has been read for each statement, and what takes its place where
that was not read. Generated from `mm2/evidence.py` and `mm2/metrics` by `python -m mm2.cli.statements`; the programs take their words
from there. A test takes the evidence of each row away.

- **A figure is what was read, not what is.** `mm2 status` and `mm2 lag` print what was read and when, as does the field `evidence` of
  `--json` and of `GET /overview/{source}/{target}`. While a cluster does not answer, its values are those of its last answer, and its error
  is printed.
- **The ledger is not the target.** It has how far was copied and which offsets were left out. Whether the target still has the rest is
  seen in the topic ids and log end offsets of the remote partitions: a topic that was deleted, recreated or cut off is reported as
  LOST_RANGE or DELETED, by `gaps`, `status`, `lag` and `failover` alike.
- **Nothing but `mm2 verify` compares records.** A log that is long enough may have other records, for instance of another producer.
- **Unknown is not zero.** A lower bound is printed as *at least*, an unknown value as `-`, `null` in JSON, and is no series in metrics. `mm2 lag`
  ends with 1 where a lag is not known, `mm2 gaps` with 2 where the logs of the target could not be read.
"""

_FIELDS: Final = """
## Fields of flows in JSON

`GET /overview/{source}/{target}` and `mm2 status --json`. A field is null before all of its evidence was read once; the lists `partitions` and
`groups` of `mm2 status` are then empty. Fields of partitions and groups are null where they are not known.

| field | evidence |
| --- | --- |
"""
_METRICS: Final = """
## Metrics of flows

A metric has no series before all of its evidence was read once. After that its values stay while a cluster does not answer,
`mm2_flow_cluster_up` is 0, and `mm2_flow_read_timestamp_seconds` does not advance. MirrorMaker's and Connect's own metrics are those of the
process.

| metric | evidence |
| --- | --- |
"""


def page() -> str:
    """The whole page."""
    parts = [
        _HEAD,
        "\n## Evidence\n\n| name | what is read |\n| --- | --- |\n",
        *(f"| `{what}` | {READ[what][1]} |\n" for what in Evidence),
        "\n## Statements\n\nWords in braces are figures and names.\n\n",
        "| where | statement | evidence | without it |\n| --- | --- | --- | --- |\n",
        *(
            f"| {one.where} | {_quoted(one.text)} | {_names(one.evidence)} | {_quoted(one.without)} |\n"
            for one in STATEMENTS.values()
        ),
        _FIELDS,
        *(
            f"| `{one.name}` | {_names(one.metadata['evidence'])} |\n"
            for one in fields(FlowView)
            if "evidence" in one.metadata
        ),
        _METRICS,
        *(f"| `{one.name}` | {_names(one.evidence) or 'that which it reports'} |\n" for one in FLOW_METRICS),
    ]
    return "".join(parts)


def _names(evidence: Iterable[Evidence]) -> str:
    return ", ".join(f"`{one}`" for one in evidence)


def _quoted(text: str) -> str:
    return text.strip(" ;,") or "-"


if __name__ == "__main__":
    sys.stdout.write(page())
