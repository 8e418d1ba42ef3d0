"""The models that are checked: the old protocol with each finding, each rule turned off, the new protocol."""

from __future__ import annotations

from dataclasses import replace

from tests.model import committing, ending, reading, rejecting, sending
from tests.model.checker import Model
from tests.model.committing import Committing
from tests.model.ending import Ending
from tests.model.reading import Reading
from tests.model.rejecting import Rejecting
from tests.model.sending import Sending

OLD, YOUNG = True, False  # old: its producer may be forgotten; young

FINDINGS: dict[str, tuple[Model, str, str]] = {
    "1: an acknowledgement passes a hole": (
        Sending(sending.Bounds((OLD, OLD, OLD)), sending.OLD, ("I3",)),
        "not-enough-replicas h0 batch 1",
        "I3",
    ),
    "1: records change their order": (
        Sending(sending.Bounds((OLD, OLD, OLD)), sending.OLD, ("order",)),
        "not-enough-replicas h0 batch 1",
        "I1",
    ),
    "2: a batch answered by an error after the append is sent again": (
        Sending(sending.Bounds((OLD,)), sending.OLD, ("twice",)),
        "request-timed-out h0 batch 0",
        "I1",
    ),
    "2: a batch is sent again to another leader": (
        Sending(sending.Bounds((OLD,), faults=0, moves=1), sending.OLD, ("twice",)),
        "elect b1 epoch 2",
        "I1",
    ),
    "3: a late position is taken for a user's": (
        Committing(committing.Bounds(3, 3, 2, late=(committing.POSITION,)), replace(committing.OLD, s5=True)),
        "late position 1",
        "I1",
    ),
    "3: a frozen holder writes its position when it resumes": (
        Committing(committing.Bounds(3, 3, 2, late=(), frozen=(committing.POSITION,)), committing.OLD),
        "freeze",
        "I1",
    ),
    "3: a late ledger entry is taken for the newest": (
        Committing(committing.Bounds(3, 3, 2), replace(committing.OLD, s5=True)),
        "late ledger 0",
        "I1",
    ),
    "4: records written after a truncation are passed over": (
        Reading(reading.Bounds(3, 0, 1), reading.OLD),
        "metadata",
        "I1: record 1 is left out",
    ),
    "5: an isolation level that changed across a crash": (
        Reading(reading.Bounds(3, 1, 0, 1, aborted=True), reading.OLD),
        "configure read_committed",
        "I1: record 1 is counted as copied",
    ),
    "6: an unclean election between a crash and the next commit": (
        Reading(reading.Bounds(3, 1, 1), replace(reading.OLD, r4=True)),
        "elect e2, log ends at 0",
        "I1: record 1 is counted as copied",
    ),
    "7: a position is ahead of the high watermark": (
        Sending(sending.Bounds((OLD,), faults=0, takeovers=1), sending.OLD, ("I2",)),
        "found h1",
        "I2",
    ),
}

#: A bound in which a rule is needed. S2 is not among them, see docs/explanation/copy-sessions-model.md.
NEEDED: dict[str, sending.Bounds] = {
    "s1": sending.Bounds((OLD, OLD, OLD)),
    "s3": sending.Bounds((OLD, OLD)),
    "s4": sending.Bounds((YOUNG, YOUNG, YOUNG), expiry_unknown=True),
    "s5": sending.Bounds((OLD,), takeovers=1),
    "s6": sending.Bounds((OLD,), faults=0, moves=1, takeovers=1),
    "l1": sending.Bounds((OLD, OLD)),
    "l2": sending.Bounds((YOUNG, YOUNG), moves=1, takeovers=1),
    "l3": sending.Bounds((OLD, OLD), faults=0, breaks=1, late_requests=True),
    "l4": sending.Bounds((OLD,), faults=0, moves=1, takeovers=1),
    "l5": sending.Bounds((OLD,), takeovers=1),
}

#: The same for commits. C1 (the order of the two writes) and S5 are not among them: where records describe themselves nothing
#: needs these two any more.
NEEDED_BY_COMMITS: dict[str, committing.Bounds] = {
    "c2": committing.Bounds(2, 3, 1),
    "c3": committing.Bounds(2, 3, 1),
    "c4": committing.Bounds(2, 3, 1),
    "c5": committing.Bounds(2, 3, 1),
    "c6": committing.Bounds(2, 3, 1, outages=1),
    "c7": committing.Bounds(1, 4, 1, reopens=1),
    "c7_clean": committing.Bounds(1, 4, 1, reopens=1, clean=True),
    "c8": committing.Bounds(2, 3, 1, resets=1),
    "c8_seen": committing.Bounds(2, 3, 2, strays=1),
}

NEEDED_BY_READING: dict[str, reading.Bounds] = {
    "r1": reading.Bounds(2, 1, 0),
    "r1_rules": reading.Bounds(3, 1, 0, 1, aborted=True),
    "r2": reading.Bounds(2, 1, 1),
    "r3": reading.Bounds(3, 1, 0, 1, aborted=True),
    "r4": reading.Bounds(3, 0, 1),
    "r4_epoch": reading.Bounds(4, 0, 2),
    "r4_starts": reading.Bounds(3, 0, 2, fork=True),
}

NEEDED_BY_ENDING: dict[str, ending.Bounds] = {
    "r3_after": ending.Bounds(),
    "r3_inherit": ending.Bounds(2, 3, 3, 2),
    "s6_first": ending.Bounds(),
}

NEEDED_BY_REJECTING: dict[str, rejecting.Bounds] = {
    "s9_source": rejecting.Bounds(3, (), 1, 0, 1),
    "s9_letter": rejecting.Bounds(3, (0,), 1),
    "s9_own": rejecting.Bounds(3, (0,), 0, 1),
    "s9_epoch": rejecting.Bounds(3, (), 1, 0, 1),
    "s9_entry": rejecting.Bounds(3, (0,), 1, 1),
    "s10": rejecting.Bounds(3, (0,), 1),
}

#: Assumptions of reading, each with a bound in which the protocol fails without it.
ASSUMED: dict[str, reading.Bounds] = {
    "stale": reading.Bounds(2, 1, 1, stale=True),
    "fork and a crash": reading.Bounds(3, 1, 2, fork=True),
}

HOLDS: list[Model] = [
    Sending(sending.Bounds((OLD, OLD, OLD), breaks=1)),
    Sending(sending.Bounds((YOUNG, OLD, YOUNG), breaks=1)),
    Sending(sending.Bounds((YOUNG, YOUNG, YOUNG), faults=1, moves=1)),
    Sending(sending.Bounds((OLD,), faults=0, breaks=1, moves=1, takeovers=1)),
    Sending(sending.Bounds((OLD,), moves=2, breaks=1)),
    Sending(sending.Bounds((YOUNG, YOUNG, YOUNG), expiry_unknown=True)),
    Sending(sending.Bounds((OLD, OLD), faults=0, breaks=1, late_requests=True)),
    Sending(sending.Bounds((OLD, OLD), faults=0, takeovers=1, slow_send=True)),
    Reading(reading.Bounds(3, 1, 2)),
    Reading(reading.Bounds(4, 0, 3, fork=True)),
    Reading(reading.Bounds(3, 2, 0, 1, aborted=True)),
    Committing(committing.Bounds(2, 3, 1)),
    Committing(committing.Bounds(1, 4, 1, reopens=1, clean=True)),
    Committing(committing.Bounds(2, 3, 1, resets=1, clean=True)),
    Ending(ending.Bounds(3, 3, 3, 2)),
    Rejecting(rejecting.Bounds(4, (0, 2), 2, 1)),
    Rejecting(rejecting.Bounds(4, (1,), 2, 0, 1)),
    Rejecting(rejecting.Bounds(3, (1,), 1, 1, 1)),
]

LARGE: list[Model] = [
    Reading(reading.Bounds(4, 2, 2)),
    Reading(reading.Bounds(3, 2, 1, 1, aborted=True)),
    Sending(sending.Bounds((YOUNG, YOUNG), moves=1, takeovers=1)),
    Committing(committing.Bounds(2, 3, 1, delays=1)),
    Sending(sending.Bounds((OLD, OLD), faults=0, breaks=1, moves=1, takeovers=1)),
    Sending(sending.Bounds((OLD, OLD), faults=0, moves=2, takeovers=1)),
    Sending(sending.Bounds((OLD,), faults=0, moves=2, takeovers=1, there_and_back=True)),
    Committing(committing.Bounds(2, 3, 2, resets=1, reopens=1, clean=True)),
    Committing(committing.Bounds(2, 3, 3, strays=1, clean=True)),
    Ending(ending.Bounds(4, 5, 4, 3)),
]

#: C8 with one more rule: a position that equals the newest mark is taken for ours, whatever precedes it.
SHORTCUT = Committing(committing.Bounds(2, 3, 1, resets=1), committing.Rules(shortcut=True))


def without(rule: str) -> Model:
    """The new protocol without one rule, in the bounds in which the rule is needed."""
    off = {rule: False}
    if rule in NEEDED:
        return Sending(NEEDED[rule], replace(sending.Rules(), **off), label=f"sending without {rule.upper()}")
    if rule in NEEDED_BY_COMMITS:
        rules = replace(committing.Rules(), **off)
        return Committing(NEEDED_BY_COMMITS[rule], rules, label=f"commits without {rule.upper()}")
    if rule in NEEDED_BY_ENDING:
        rules_of_end = replace(ending.Rules(), **off)
        return Ending(NEEDED_BY_ENDING[rule], rules_of_end, label=f"ending without {rule.upper()}")
    if rule in NEEDED_BY_REJECTING:
        rules_of_letters = replace(rejecting.Rules(), **off)
        return Rejecting(NEEDED_BY_REJECTING[rule], rules_of_letters, label=f"rejecting without {rule.upper()}")
    return Reading(NEEDED_BY_READING[rule], replace(reading.Rules(), **off), label=f"reading without {rule.upper()}")
