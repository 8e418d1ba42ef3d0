"""promote A->B: remote topics become topics of B. The flow stops copying to them; ACLs for writing are reported."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from mm2.evidence import counted
from mm2.failover.copy_control import hand_over, may_be_promoted, on_interrupt
from mm2.failover.denials import denials_of, to_allow
from mm2.failover.evidence import FailoverReport, target_problems
from mm2.failover.groups import Choice
from mm2.failover.leaving import (
    Before,
    Confirm,
    after_stop,
    reason_to_confirm,
    refuse_rejected,
    refuse_to_leave_behind,
    refuse_uncopied,
)
from mm2.failover.records.partitions import last_contact_ms
from mm2.failover.sides import FlowConfig, Sides, now_ms
from mm2.kafka.error_codes import ErrorCode
from mm2.kafka.errors import BrokerFailure, KafkaFailure, failures_in
from mm2.kafka.structs import AclBinding, AclOperation, AclPermission, PatternType, ResourceType
from mm2.mirror.topics.remote_acls import acl_filter, applies_to
from mm2.mirror.topics.write_denials import VISIBLE_S, polled_until_empty

VERB: Final = "promote"
_WRITING: Final = frozenset({AclOperation.WRITE, AclOperation.ALL})


def promote(
    config: FlowConfig,
    choice: Choice,
    confirm: Confirm,
    *,
    dry_run: bool,
    leave_behind: bool = False,
    create_acls: bool = False,
) -> FailoverReport:
    """Run the command. Raises Refused or KafkaFailure if nothing was changed."""
    with Sides.opened(config) as sides:
        before = Before.of(sides, choice)
        run = functools.partial(_promoted, sides, choice, leave_behind=leave_behind, create_acls=create_acls)
        if not dry_run:
            refuse_rejected(sides, leave_behind=leave_behind)
            if not leave_behind:
                refuse_to_leave_behind(sides, before)
            if reason := reason_to_confirm(sides):
                confirm(reason, functools.partial(run, before, dry_run=True))
                before = Before.of(sides, choice)  # as it is after the confirmation
                if not leave_behind:
                    refuse_to_leave_behind(sides, before)
            refuse_uncopied(sides, before, choice)
        return run(before, dry_run=dry_run)


def _promoted(
    sides: Sides, choice: Choice, before: Before, *, dry_run: bool, leave_behind: bool, create_acls: bool
) -> FailoverReport:
    """Promote the topics, or show what would be done. Raises KafkaFailure if nothing was changed."""
    topics = before.topics
    wanted, error = _write_acls(sides, topics)
    result = _PromoteState(before, target_problems(sides.pair.target, before.partitions) if dry_run else [])
    if dry_run:
        result.done += to_allow(sides, denials_of(sides, topics))
    else:
        with on_interrupt(may_be_promoted(sides, topics)):
            is_promoted = _execute(sides, choice, result, leave_behind=leave_behind)
            if wanted and create_acls and is_promoted:
                failed = _create_acls(sides, wanted)
                result.problems += failed
                result.done += [] if failed else [f"{counted(len(wanted), 'ACL')} created and verified"]
    if error and create_acls:
        result.problems.append(error)
    elif error:
        result.notes.append(error)
    elif wanted and (dry_run or not create_acls):
        result.done.append(f"{counted(len(wanted), 'ACL')} missing on {sides.pair.target}; --create-acls creates them")
    return FailoverReport(
        VERB,
        str(sides.pair),
        dry_run,
        now_ms(),
        sides.source_error,
        last_contact_ms(sides),
        result.state.partitions,
        acls=[_text(acl) for acl in wanted],
        notes=[*result.state.notes, *result.notes],
        done=result.done,
        problems=result.problems,
        advice=_advice(sides, topics),
    )


@dataclass
class _PromoteState:
    """The state after the command, or before it for a dry run, with messages."""

    state: Before
    problems: list[str]
    done: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def _execute(sides: Sides, choice: Choice, result: _PromoteState, *, leave_behind: bool) -> bool:
    """Promote the topics; whether they certainly are. From here on, no failure means that nothing was changed."""
    before, topics = result.state, result.state.topics
    result.done, result.problems, is_promoted = hand_over(sides, topics, denials_of(sides, topics), VERB)
    if not is_promoted:
        return False
    try:
        result.state, late = after_stop(sides, before, choice, leave_behind=leave_behind)
        result.problems += late
    except KafkaFailure as failure:
        result.problems.append(
            f"cannot verify that {sides.pair.target} has all records, run the command again: {failure}"
        )
    return True


def _write_acls(sides: Sides, topics: Mapping[str, str]) -> tuple[list[AclBinding], str]:
    """The source's ACLs for writing, as ACLs of the remote topics that lack them; or why they are unknown.

    MirrorMaker syncs all ACLs but those that allow WRITE, if ACL sync is enabled. ACLs that deny WRITE are needed too,
    and come first. A prefix or `*` becomes one ACL for each topic: on the target it would match other topics too.
    """
    if sides.source is None:
        return (
            [],
            f"the ACLs of {sides.pair.source} are unknown because it does not answer; create the ACLs manually",
        )
    try:
        here = sides.source.describe_acls(acl_filter(ResourceType.TOPIC))
        there = sides.target.describe_acls(acl_filter(ResourceType.TOPIC))
    except KafkaFailure as failure:
        if isinstance(failure, BrokerFailure) and failure.code == ErrorCode.SECURITY_DISABLED:
            return [], "a cluster has no authorizer, so there are no ACLs"
        return [], f"the ACLs cannot be read: {failure}"
    wanted = {
        dataclasses.replace(
            acl,
            resource_name=remote,
            pattern_type=PatternType.LITERAL,
            operation=AclOperation.WRITE if acl.permission == AclPermission.ALLOW else acl.operation,
        )
        for acl in here
        if acl.operation in _WRITING
        for topic, remote in topics.items()
        if applies_to(acl, topic)
    }
    ours = denials_of(sides, topics)
    missing = [acl for acl in wanted if not _is_granted(acl, [one for one in there if one not in ours])]
    return sorted(missing, key=lambda acl: (acl.permission == AclPermission.ALLOW, _text(acl))), ""


def _is_granted(wanted: AclBinding, there: Iterable[AclBinding]) -> bool:
    """Whether an existing ACL includes the wanted one."""
    return any(
        (acl.permission, acl.principal, acl.host) == (wanted.permission, wanted.principal, wanted.host)
        and acl.operation in {wanted.operation, AclOperation.ALL}
        and applies_to(acl, wanted.resource_name)
        for acl in there
    )


def _create_acls(sides: Sides, wanted: Sequence[AclBinding]) -> list[str]:
    """Create ACLs and verify that they exist; returns the problems."""
    try:
        failed = failures_in(sides.target.create_acls(wanted))
        created = set(wanted) - failed.keys()
        invisible = polled_until_empty(
            lambda: created - set(sides.target.describe_acls(acl_filter(ResourceType.TOPIC)))
        )
    except KafkaFailure as failure:
        return [f"the ACLs may not be created, run the command again: {failure}"]
    problems = [f"ACL {_text(acl)}: {failure}" for acl, failure in failed.items()]
    return problems + [
        f"ACL {_text(acl)} was created, but is not visible after {VISIBLE_S:.0f} s"
        for acl in wanted
        if acl in invisible
    ]


def _text(acl: AclBinding) -> str:
    return f"{acl.permission.name} {acl.principal} {acl.operation.name} topic {acl.resource_name} from host {acl.host}"


def _advice(sides: Sides, topics: Collection[str]) -> list[str]:
    target = sides.pair.target
    renamed = sorted(sides.selection.remote(topic) for topic in topics if not sides.is_same_name(topic))
    advice = []
    if renamed:
        more = f" and {counted(len(renamed) - 1, 'more remote topic')}" if len(renamed) > 1 else ""
        advice.append(f"applications can now write to {renamed[0]}{more} on {target}")
        advice += sides.way_back(dict.fromkeys(renamed, "")).sentences()
    if len(renamed) < len(topics):
        advice.append(f"applications can now write to the same topics on {target}")
    advice.append(f"to copy these topics again: mm2 failback FILE '{sides.pair}' --dry-run")
    return advice
