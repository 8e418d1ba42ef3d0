"""Compares what `mm2 status`, `gaps`, `lag` and `verify` state about the copies of a flow with a count of the records. Pure.

A statement is false if it excludes a loss although records are missing, or names a loss although none are. What a verb
says it does not know is no statement.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from mm2.copy.states import HEALTHY, PartitionState
from mm2.verify.comparing.findings import Explained
from mm2.verify.report import Verdict
from tests.endurance.copy_counts import Copy, Count

#: States that say that the target does not have what was copied.
LOSS: Final = frozenset({PartitionState.LOST_RANGE, PartitionState.DELETED, PartitionState.RECREATED})


class Answer(NamedTuple):
    """The exit code and the outputs of one run of `mm2`."""

    code: int
    output: str
    errors: str

    @property
    def document(self) -> Any:
        """The JSON document; {} if there is none."""
        return json.loads(self.output) if self.output.strip() else {}


@dataclass(frozen=True)
class Statement:
    """What a verb states, and whether the count contradicts it."""

    verb: str
    text: str
    is_false: bool


@dataclass(frozen=True)
class Stated:
    """The answers at one moment: of `status` and `verify` for all topics, of `gaps` and `lag` by topic."""

    status: Answer
    verify: Answer
    gaps: Mapping[str, Answer]
    lag: Mapping[str, Answer]

    def state(self, topic: str) -> str:
        """The state that `mm2 status` has for the topic's partition; UNKNOWN: the command has none."""
        return str((self._partition(topic) or {}).get("state", "UNKNOWN"))

    def _partition(self, topic: str) -> Mapping[str, Any] | None:
        rows = [row for flow in self.status.document.get("flows", ()) for row in flow["partitions"]]
        return next((row for row in rows if row["topic"] == topic), None)

    def statements(self, copies: Mapping[Copy, Mapping[str, Count]]) -> Iterator[Statement]:
        """All statements about these copies, which are those of the flow."""
        missing = sum(len(count.missing) for counts in copies.values() for count in counts.values())
        for flow in self.status.document.get("flows", ()):
            if "you lose nothing" in flow["sentence"]:
                yield Statement("status", flow["sentence"], bool(missing))
        for copy, counts in copies.items():
            for topic, count in counts.items():
                yield from self._of_status(topic, count)
                yield from self._of_gaps(topic, count)
                yield from self._of_lag(topic, count)
                yield from self._of_verify(topic, count, is_merge=copy.is_merge)

    def _of_status(self, topic: str, count: Count) -> Iterator[Statement]:
        row = self._partition(topic)
        if row is None or row["position"] is None:
            return
        state, position = row["state"], row["position"]
        text = f"{topic} is {state} at {position}"
        if state in HEALTHY:
            yield Statement("status", text, bool(count.missing_in(0, position) and not row["gaps"]))
        elif state in LOSS:
            yield Statement("status", text, count.is_whole)

    def _of_gaps(self, topic: str, count: Count) -> Iterator[Statement]:
        answer = self.gaps[topic]
        rows = answer.document.get("partitions", ())
        if answer.code == 0:
            for row in rows:
                text = f"no loss of {topic} before {row['position']}"
                yield Statement("gaps", text, bool(count.missing_in(0, row["position"])))
        elif answer.code == 1 and not any((row.get("target_loss") or {}).get("code") == "stopped" for row in rows):
            yield Statement("gaps", f"{topic} has lost records: {json.dumps(rows)}", count.is_whole)

    def _of_lag(self, topic: str, count: Count) -> Iterator[Statement]:
        for flow in self.lag[topic].document.get("flows", ()):
            for row in flow["partitions"]:
                if row["is_exact"]:
                    text = f"{topic} lacks {row['records']} records"
                    yield Statement("lag", text, row["records"] != len(count.missing))

    def _of_verify(self, topic: str, count: Count, *, is_merge: bool) -> Iterator[Statement]:
        for row in self.verify.document.get("partitions", ()):
            if row["topic"] != topic:
                continue
            verdict, last = Verdict(row["verdict"]), row["last_offset"]
            lost = 0 if last is None else count.missing_in(row["first_offset"], last + 1)
            lost -= row["explained"].get(Explained.PENDING, 0)
            differs = bool(lost or count.doubled or count.disordered)
            text = f"{topic} is {verdict} up to {last}: {row['differences']}, {row['explained']}"
            if is_merge:
                yield Statement("verify", f"{text} (a merge is not compared)", verdict is not Verdict.INCOMPLETE)
            elif verdict is Verdict.EQUAL:
                yield Statement("verify", text, differs)
            elif verdict is Verdict.DIFFERENT:
                is_exact = bool(count.foreign) or row["differences"].get("missing", 0) == lost
                yield Statement("verify", text, not (differs or count.foreign) or not is_exact)


def commands(file: str, flow: str, topics: Sequence[str]) -> list[list[str]]:
    """The command lines, in the order in which `stated` expects their answers."""
    selected = [part for topic in topics for part in ("--topic", topic)]
    return [
        ["status", file, flow, "--json"],
        *(["gaps", file, flow, "--topic", topic, "--json"] for topic in topics),
        *(["lag", file, flow, "--topic", topic, "--top", "0", "--json"] for topic in topics),
        ["verify", file, flow, *selected, "--parallel", "1", "--json"],
    ]


def stated(topics: Sequence[str], answers: Sequence[Answer]) -> Stated:
    """The answers to `commands`."""
    count = len(topics)
    gaps, lag = answers[1 : 1 + count], answers[1 + count : 1 + 2 * count]
    return Stated(answers[0], answers[-1], dict(zip(topics, gaps, strict=True)), dict(zip(topics, lag, strict=True)))
