"""`mm2 plan`: preview what a start would create or change, the permissions it needs, and what would fail."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final, TextIO

from mm2.cli.common.flow import EXIT_ERROR, EXIT_NOT_WELL, EXIT_WELL, CommandError, add_file, pair_of
from mm2.cli.common.output import write_document
from mm2.cli.common.tables import number, table
from mm2.cli.common.terminal import visible_line
from mm2.cli.common.verbs import examples
from mm2.config.files.properties import load_properties
from mm2.config.files.provider_values import hide_known
from mm2.config.mirrormaker import MirrorMakerConfig, SourceAndTarget
from mm2.config.unread import unread_message
from mm2.evidence import NO_PROBLEM, NO_STEPS, counted
from mm2.failover.sides import FlowConfig
from mm2.mirror.common.plugins import connect_plugins, plugin_limits, plugin_props
from mm2.mirror.plan.preview import Preview, preview
from mm2.mirror.plan.rehearsal import Step
from mm2.mirror.plan.required_acls import AclState, AclStatus
from mm2.mirror.process.plans import plan_flows

_NAMED: Final = 4


def add(verbs: Any) -> None:
    """Declare the command and its arguments."""
    parser = verbs.add_parser(
        "plan",
        help="what a start would create or change, and missing permissions; changes nothing",
        description="What connect-mirror-maker would do on both clusters of a flow if it started now: topics and "
        "partitions to create, configs to alter, ACLs to create or remove, connector configurations to write."
        " Then the permissions that it needs and which of them are missing, as far as the brokers report "
        "them. Topics that are copied now and would not be any more, and keys that are unknown or have "
        "no or a limited effect, are listed, too. "
        "Changes nothing: requests are only validated. Exit code: 0 no problem was found, 1 there are "
        "problems, 2 the file is invalid, or a cluster is unavailable.",
        epilog=examples(
            ("all flows of the file", "mm2 plan mm2.properties"),
            ("one flow, all permissions", "mm2 plan mm2.properties 'A->B' --rights"),
            ("before a changed file is deployed", "mm2 plan new.properties --json | jq '.flows[].steps'"),
        ),
    )
    add_file(parser, flow="?")
    parser.add_argument(
        "--rights",
        action="store_true",
        help="show the rights that are there, too, and the names of all topics and groups",
    )
    parser.set_defaults(run=run)


def run(options: Any) -> int:
    """Run the command; returns the exit code. Raises CommandError, ConfigException or ConnectError."""
    config = MirrorMakerConfig(load_properties(options.config))
    named = None if options.flow is None else pair_of(config, options.config, options.flow)
    if named is not None and named not in config.cluster_pairs():
        raise CommandError(f"{named} does not run: neither {named}.enabled nor its emit.heartbeats.enabled is true.")
    plugins = connect_plugins(plugin_props(config, None))
    plugins.limit(plugin_limits(config))
    # As a process for this target does, which runs all flows into it.
    every = plan_flows(config, None if named is None else [named.target], plugins)
    plans = every if named is None else {named: every[named]}
    found = [preview(pair, plan, _reverse_props(config, pair), every) for pair, plan in plans.items()]
    unread = config.unread_keys()
    disabled = config.disabled_message
    ineffective = config.ineffective_keys({pair.target for pair in plans})
    if options.json:
        keys = [{"key": key, "nearest": nearest} for key, nearest in unread]
        write_document(
            options,
            {
                "flows": [_json(one) for one in found],
                "unread": keys,
                "ineffective": list(map(str, ineffective)),
                "troubles": [disabled] if disabled else [],
            },
        )
    else:
        for index, one in enumerate(found):
            sys.stdout.write("\n" if index else "")
            write_preview(sys.stdout, one, every_right=options.rights)
        sys.stdout.write(f"! {disabled}\n" if disabled else "")
        sys.stdout.writelines(f"! {visible_line(unread_message(options.config, *one))}\n" for one in unread)
        sys.stdout.writelines(f"- {visible_line(str(one))}\n" for one in ineffective)
    if any(one.unreachable for one in found):
        return EXIT_ERROR
    return EXIT_WELL if all(one.is_well for one in found) and not unread and not disabled else EXIT_NOT_WELL


def _reverse_props(config: MirrorMakerConfig, pair: SourceAndTarget) -> Mapping[str, str] | None:
    """The settings of the source connector in the opposite direction, if the file enables it."""
    reverse = FlowConfig.of(config, pair).reverse
    return None if reverse is None else reverse.source_connector


def _json(one: Preview) -> dict[str, Any]:
    return {
        "name": one.flow,
        "well": one.is_well,
        "steps": [
            {
                "cluster": step.cluster,
                "action": step.action,
                "subject": step.subject,
                "details": dict(step.details),
                "trouble": hide_known(step.error) or None,
            }
            for step in one.steps
        ],
        "rights": [
            {
                "cluster": one.alias(right.need.side),
                "resource": right.need.kind.name,
                "names": list(right.need.names),
                "operation": right.need.operation.name,
                "purpose": right.need.purpose,
                "allowed": str(right.allowed),
                "missing": list(right.missing),
                "unknown": list(right.unknown),
                "note": right.note or None,
            }
            for right in one.rights
        ],
        "troubles": list(map(hide_known, one.errors)),
        "notes": list(map(hide_known, one.notes)),
        "unreachable": list(one.unreachable),
    }


def write_preview(out: TextIO, one: Preview, *, every_right: bool = False) -> None:
    """Print the preview of one flow."""
    out.write(f"{one.flow}\n")
    for step in one.steps:
        out.write(f"  {_step(step)}\n")
        if step.error:
            out.write(f"      would fail: {hide_known(step.error)}\n")
    if not one.steps:
        out.write(f"  {NO_STEPS(is_known=not one.unreachable)}\n")
    shown = [right for right in one.rights if every_right or right.allowed is not AclState.YES]
    if shown:
        out.write("\n")
        header = ("CLUSTER", "RIGHT", "RESOURCE", "ON", "FOR", "IS")
        table(out, header, [_right(one, right, every_name=every_right) for right in shown], left=len(header))
    out.writelines(f"! {hide_known(error)}\n" for error in one.errors)
    out.writelines(f"- {hide_known(note)}\n" for note in one.notes)
    out.write(f"{one.flow}: {_summary(one)}\n")


def _step(step: Step) -> str:
    shown = ", ".join(f"{key}={value}" if key else value for key, value in step.details.items())
    return f"{step.cluster}: {step.action} {step.subject}{f': {shown}' if shown else ''}"


def _right(one: Preview, right: AclStatus, *, every_name: bool) -> tuple[str, ...]:
    need = right.need
    names = right.missing or right.unknown or need.names
    why = f" ({right.note})" if right.note else ""
    return (
        one.alias(need.side),
        need.operation.name,
        need.kind.name,
        ", ".join(names) if every_name else _names(names),
        need.purpose,
        f"{right.allowed}{why}",
    )


def _names(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_NAMED])
    return shown if len(names) <= _NAMED else f"{shown} and {number(len(names) - _NAMED)} more"


def _summary(one: Preview) -> str:
    fails = sum(bool(step.error) for step in one.steps)
    missing = sum(bool(right.missing and not right.need.instead) for right in one.rights)
    unknown = sum(right.allowed is AclState.UNKNOWN for right in one.rights)
    parts = [counted(len(one.steps), "step")]
    parts += [f"{number(fails)} of them would fail"] if fails else []
    parts += [f"{counted(missing, 'right')} missing"] if missing else []
    parts += [f"{number(unknown)} not known"] if unknown else []
    parts += [f"{number(len(one.errors))} problems"] if one.errors else []
    return ", ".join(parts) + (NO_PROBLEM(is_known=not (unknown or one.unreachable)) if one.is_well else "")
