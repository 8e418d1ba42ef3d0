"""Ledgers of several source connectors with one alias, read together."""

from __future__ import annotations

import pytest

from mm2.copy.progress.ledger import Ledger, chunk_record, entry_record, is_ledger_of, ledger_topic, note_record
from mm2.copy.progress.segments import Segment, SegmentChunk
from mm2.copy.progress.session import CopyId, LedgerEntry, Mark
from mm2.kafka.structs import TopicPartition
from mm2.mirror.common.clients import MirrorClients
from mm2.mirror.notes.joint_ledger import JointLedger

T, U, V = (TopicPartition(name, 0) for name in ("t", "u", "v"))


ONE, TWO = (CopyId("connect", name, "id-of-a") for name in ("c1", "c2"))


def ledger(remote: str, *sources: TopicPartition, target: int, copy_id: CopyId) -> Ledger:
    found = Ledger()
    for source in sources:
        entry = LedgerEntry(source.topic, 0, remote, Mark(10, target + 10, 10), copy_id=copy_id)
        for row in (entry_record(entry), chunk_record(source, SegmentChunk(0, [Segment(0, target, 10)]))):
            found.apply(row.key, row.value)
    return found


def test_the_ledger_that_copies_to_the_wanted_topic_is_used() -> None:
    one, two = ledger("A.t", T, U, target=100, copy_id=ONE), ledger("t", T, target=500, copy_id=TWO)
    both = {ledger_topic("A", *ONE[:2]): one, ledger_topic("A", *TWO[:2]): two}
    for wanted, target in (("A.t", 100), ("t", 500)):
        joint = JointLedger(both, "A", "id-of-a", {"t": wanted, "u": "x"}.get)  # type: ignore[arg-type]
        entry = joint.entry(T)
        assert entry is not None
        assert (entry.remote_topic, joint.chunks(T)[0].segments[0].target) == (wanted, target)
        assert joint.partitions() == [T, U]
        assert (joint.entry(V), joint.chunks(V), joint.version(V)) == (None, [], 0)
        only = joint.entry(U)
        assert only is not None, "the translator reports that the copy is another topic"
    version, changes = joint.version(T), joint.changes
    row = entry_record(LedgerEntry("t", 0, "t", Mark(11, 511, 11), copy_id=TWO))
    two.apply(row.key, row.value)
    assert (joint.version(T), joint.changes) == (version + 1, changes + 1)
    note = note_record("promoted", ["t"], {"at_ms": 1})
    one.apply(note.key, note.value)
    assert joint.notes("promoted") == {("t",): {"at_ms": 1}}


@pytest.mark.parametrize(
    "forged",
    [
        CopyId(),
        ONE,
        CopyId("connect", "other", "id-of-a"),
        CopyId("connect", "forged"),
        CopyId("connect", "forged", "id"),
    ],
    ids=["no connector", "another's", "another name", "no cluster", "another cluster"],
)
@pytest.mark.parametrize("real", [ONE, CopyId()], ids=["new", "old"])
def test_a_ledger_that_anybody_may_have_created_hides_no_other_one(real: CopyId, forged: CopyId) -> None:
    """Its name sorts before that of the real one, and its entry names the right topic."""
    shadow, found = ledger("A.t", T, U, target=0, copy_id=forged), ledger("A.t", T, target=100, copy_id=real)
    note = note_record("promoted", ["t"], {"at_ms": 1})
    shadow.apply(note.key, note.value)
    name = ledger_topic("A", *real[:2]) if real.connector else ledger_topic("A")
    ledgers = {ledger_topic("A", "connect", "forged"): shadow, name: found}
    joint = JointLedger(ledgers, "A", "id-of-a", "A.{}".format)
    assert joint.chunks(T)[0].segments[0].target == 100
    if forged[:2] != ("connect", "forged") or forged.cluster:
        assert (joint.partitions(), joint.notes("promoted")) == ([T], {})


def test_each_connector_has_a_ledger_of_its_own() -> None:
    of_file = {"source.cluster.alias": "A", "target.cluster.alias": "B", "name": "MirrorSourceConnector"}
    assert MirrorClients(of_file).ledger_topic == "mm2-ledger.A.internal"
    assert MirrorClients(of_file, group="A-mm2").ledger_topic == "mm2-ledger.A.internal"
    checkpoints = {**of_file, "name": "MirrorCheckpointConnector"}
    assert MirrorClients(checkpoints, group="A-mm2").ledger_topic == "mm2-ledger.A.internal"
    names = {
        MirrorClients({**of_file, "name": name}, group=group).ledger_topic
        for group in ("A-mm2", "connect")
        for name in ("MirrorSourceConnector", "c1", "c2")
    }
    assert len(names) == 6
    assert all(is_ledger_of(name, "A") for name in names)
    other_group = {**of_file, "target.cluster.group.id": "other"}
    assert MirrorClients(other_group).ledger_topic == MirrorClients(other_group, group="other").ledger_topic
    opposite = MirrorClients({**of_file, "source.cluster.group.id": "other"})
    assert opposite.opposite_ledger_topic == ledger_topic("B", "other")
    assert [is_ledger_of(ledger_topic(alias, "g", "c"), "A") for alias in ("A", "B.A", "A.A")] == [True, False, False]
