"""Generates docs/RIGHTS.md from `mm2.mirror.required_acls`: ``python -m mm2.mirror.rights_reference``. A test compares the two."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from mm2.mirror.clients import Side
from mm2.mirror.required_acls import RIGHTS, Feature, Right

FILE: Final = Path("docs/RIGHTS.md")

_HEAD: Final = """\
# Required rights

The ACLs that the flow `A->B` and the commands of `mm2` need, by feature. Grant those of the features that are enabled and of the commands
that are used; nothing else is requested. The names are those of the default policy.

This page is generated from [`required_acls.py`](../mm2/mirror/required_acls.py) (`python -m mm2.mirror.rights_reference`); a test
compares it.

- READ, WRITE, DELETE and ALTER include DESCRIBE, and ALTER_CONFIGS includes DESCRIBE_CONFIGS: these need no ACL of their own.
- ALTER on the cluster includes CLUSTER_ACTION for `preserve.offsets` (KIP-1037).
- CREATE on a topic is not needed when the topic exists. CREATE on the cluster includes it.
- `mm2 plan mm2.properties 'A->B'` lists the rights of the flow that are missing, with the names of your topics and groups. It cannot
  check rights on transactional ids, nor those on the ledger of the flow in the other direction.
- An error of a broker that denies a request names the resource and the missing right:
  `writing to A.orders-0 of cluster B: TOPIC_AUTHORIZATION_FAILED, …; the right WRITE is missing.`
- With DESCRIBE_CONFIGS on the internal topics, their `cleanup.policy` is checked.
- With `offset-syncs.topic.location=target`, the topic of offset syncs is `mm2-offset-syncs.A.internal` on B.
- On brokers before 2.8, a producer id also requires IDEMPOTENT_WRITE on cluster B.
"""


def page() -> str:
    """The whole page."""
    return "\n".join((_HEAD, *_lines()))


def _lines() -> Iterator[str]:
    for feature in Feature:
        yield f"## {feature}\n"
        yield "| cluster | operation | resource | needed for | without it |"
        yield "| --- | --- | --- | --- | --- |"
        yield from (_row(right) for right in RIGHTS if right.feature is feature)
        yield ""


def _row(right: Right) -> str:
    alias = "A" if right.side is Side.SOURCE else "B"
    operations = ", ".join(operation.name for operation in right.operations)
    return f"| {alias} | {operations} | {right.resource} | {right.purpose} | {right.without} |"


if __name__ == "__main__":
    FILE.write_text(page(), encoding="utf-8")
    sys.stdout.write(f"{FILE} is written.\n")
