"""Each finding is a counterexample of the protocol as it was, and the new protocol has none within the bounds."""

from dataclasses import replace

import pytest

from tests.model import committing, sending
from tests.model.checker import Model, Result, check, render
from tests.model.committing import Committing
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
    "7: a position is ahead of the high watermark": (
        Sending(sending.Bounds((OLD,), faults=0, takeovers=1), sending.OLD, ("I2",)),
        "found h1",
        "I2",
    ),
}

#: A bound in which a rule is needed. S2 is not among them, see docs/design/copy-sessions-model.md.
NEEDED: dict[str, sending.Bounds] = {
    "s1": sending.Bounds((OLD, OLD, OLD)),
    "s3": sending.Bounds((OLD, OLD)),
    "s4": sending.Bounds((YOUNG, YOUNG, YOUNG), expiry_unknown=True),
    "s5": sending.Bounds((OLD,), takeovers=1),
    "s6": sending.Bounds((OLD,), faults=0, moves=1, takeovers=1),
    "s7": sending.Bounds((OLD,), faults=0, breaks=1, moves=1, takeovers=1),
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
    "c5": committing.Bounds(2, 3, 1),
    "c6": committing.Bounds(2, 3, 1, outages=1),
    "c7": committing.Bounds(1, 4, 1, reopens=1),
    "c7_clean": committing.Bounds(1, 4, 1, reopens=1, clean=True),
    "c8": committing.Bounds(2, 3, 1, resets=1),
    "c8_seen": committing.Bounds(2, 3, 2, strays=1),
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
    Committing(committing.Bounds(2, 3, 1)),
    Committing(committing.Bounds(1, 4, 1, reopens=1, clean=True)),
    Committing(committing.Bounds(2, 3, 1, resets=1, clean=True)),
]

LARGE: list[Model] = [
    Sending(sending.Bounds((YOUNG, YOUNG), moves=1, takeovers=1)),
    Committing(committing.Bounds(2, 3, 1, delays=1)),
    Sending(sending.Bounds((OLD, OLD), faults=0, breaks=1, moves=1, takeovers=1)),
    Sending(sending.Bounds((OLD, OLD), faults=0, moves=2, takeovers=1)),
    Sending(sending.Bounds((OLD,), faults=0, moves=2, takeovers=1, there_and_back=True)),
    Committing(committing.Bounds(2, 3, 2, resets=1, reopens=1, clean=True)),
    Committing(committing.Bounds(2, 3, 3, strays=1, clean=True)),
]


def _report(model: Model, result: Result) -> None:
    print(result)
    for found in (result.violation, result.stuck):
        if found is not None:
            print(render(model, found))


@pytest.mark.parametrize("finding", FINDINGS)
def test_the_protocol_as_it_was_has_the_finding(finding: str) -> None:
    model, step, invariant = FINDINGS[finding]
    result = check(model)
    _report(model, result)
    assert result.violation is not None
    assert result.violation.what.startswith(invariant)
    assert step in result.violation.labels


@pytest.mark.parametrize("rule", NEEDED)
def test_each_rule_of_sending_is_needed(rule: str) -> None:
    bounds = NEEDED[rule]
    model = Sending(bounds, replace(sending.Rules(), **{rule: False}))
    result = check(model)
    _report(model, result)
    assert result.violation is not None


@pytest.mark.parametrize("rule", NEEDED_BY_COMMITS)
def test_each_rule_of_commits_is_needed(rule: str) -> None:
    bounds = NEEDED_BY_COMMITS[rule]
    model = Committing(bounds, replace(committing.Rules(), **{rule: False}))
    result = check(model)
    _report(model, result)
    assert result.violation is not None


def test_a_position_at_the_mark_may_hide_a_reset() -> None:
    """A late position of the newest commit always equals its mark, so the comparison alone does not decide (rule C8)."""
    model = Committing(committing.Bounds(2, 3, 1, resets=1), committing.Rules(shortcut=True))
    result = check(model)
    _report(model, result)
    assert result.violation is not None
    assert result.violation.what.startswith("I5")


@pytest.mark.parametrize("model", HOLDS, ids=lambda model: model.name)
def test_the_new_protocol_has_no_counterexample(model: Model) -> None:
    result = check(model, progress=True)
    _report(model, result)
    assert result.complete
    assert result.violation is None
    assert result.stuck is None


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("model", LARGE, ids=lambda model: model.name)
def test_the_new_protocol_has_no_counterexample_within_larger_bounds(model: Model) -> None:
    result = check(model, progress=True)
    _report(model, result)
    assert result.complete
    assert result.violation is None
    assert result.stuck is None
