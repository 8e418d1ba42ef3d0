"""`mm2 pause`, `resume`, `restart` and `stop`: for a flow, one of its connectors or tasks, a topic or a partition.

Connectors and tasks are controlled through the REST interface of a running process, as in Connect. The pause of a topic
or a partition is a note in the flow's ledger, which the copying tasks follow. It needs no reachable process, and is
valid until it is withdrawn.
"""

from __future__ import annotations

import getpass
import os
import socket
import sys
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Final

from mm2.cli.common.flow import EXIT_NOT_WELL, EXIT_WELL, CommandError, ConfiguredFlow, add_file, pair_of, read_config
from mm2.cli.common.output import write_document
from mm2.cli.common.rest import FlowRest, add_access
from mm2.cli.common.verbs import examples, seconds
from mm2.cli.show.config import part_named
from mm2.config.keys.mirror_keys import CONNECTOR_NAMES
from mm2.copy.progress.ledger import Ledger, Pause, pause_record, paused
from mm2.copy.states import LASTS_UNTIL_RESET, PartitionState
from mm2.kafka.structs import TopicPartition
from mm2.mirror.common.clients import MirrorClients
from mm2.mirror.notes.ledgers import write_to_ledger
from mm2.mirror.notes.promotions import Promotion, holds, promoted
from mm2.mirror.process.plans import absent_connectors

_LOOK_EVERY_S: Final = 0.25
#: A restarted task was RUNNING before too: wait this long for the statuses to show the restart.
_RESTART_SEEN_S: Final = 1.5


@dataclass(frozen=True)
class _Action:
    """The effect of a command on a connector: REST method and path, and the resulting states of connector and tasks."""

    verb: str
    method: str
    path: str
    done: str
    connector: str
    tasks: str


_PAUSE: Final = _Action("pause", "PUT", "pause", "paused", "PAUSED", "PAUSED")
_RESUME: Final = _Action("resume", "PUT", "resume", "resumed", "RUNNING", "RUNNING")
_STOP: Final = _Action("stop", "PUT", "stop", "stopped", "STOPPED", "")
_RESTART: Final = _Action(
    "restart", "POST", "restart?includeTasks=true&onlyFailed=false", "restarted", "RUNNING", "RUNNING"
)


def add(verbs: Any) -> None:
    """Declare the four commands."""
    pause = _add(
        verbs,
        _PAUSE,
        "pause a flow, a connector, a topic or a partition",
        "Pauses the connectors of a flow: tasks stay and do nothing. Heartbeats continue, because the flow in the opposite direction "
        "copies them; --connector heartbeat pauses them. With --topic, a topic of the source (with --partition, one "
        "of its partitions) is no longer read; all others continue. Offsets are kept, so no data is lost within the retention "
        "of the source. The reason of its state PAUSED contains the user, the time and --reason. A topic stays "
        "paused, also after a restart, until mm2 resume.",
        ("the whole flow", "mm2 pause mm2.properties 'A->B'"),
        ("group offsets only", "mm2 pause mm2.properties 'A->B' --connector checkpoint"),
        ("one topic", "mm2 pause mm2.properties 'A->B' --topic orders --reason 'ticket 4711'"),
        ("one partition", "mm2 pause mm2.properties 'A->B' --topic orders --partition 3"),
    )
    _add_topic(pause)
    pause.add_argument("--reason", metavar="TEXT", default="", help="why a topic is paused; shown with its state")
    resume = _add(
        verbs,
        _RESUME,
        "resume what was paused or stopped",
        "Reverts mm2 pause and mm2 stop: for the connectors of a flow, or with --topic for a topic and all its "
        "partitions, or with --partition for one. When a flow is resumed, paused topics stay paused and are listed. A topic that mm2 failover or "
        "mm2 promote has promoted continues with mm2 failback.",
        ("the whole flow", "mm2 resume mm2.properties 'A->B'"),
        ("one topic", "mm2 resume mm2.properties 'A->B' --topic orders"),
    )
    _add_topic(resume)
    restart = _add(
        verbs,
        _RESTART,
        "restart a flow, a connector or a task",
        "Restarts the connectors of a flow with all their tasks, or with --task one task. Copying continues where it was. Failures of a topic or "
        "a partition need no restart, because they are retried.",
        ("the whole flow", "mm2 restart mm2.properties 'A->B'"),
        ("one task", "mm2 restart mm2.properties 'A->B' --connector source --task 2"),
    )
    restart.add_argument("--task", metavar="N", type=int, help="only this task of the connector")
    _add(
        verbs,
        _STOP,
        "stop a flow or a connector: shut its tasks down until it is resumed",
        "Stops the connectors of a flow, except heartbeats: their tasks are shut down, and their offsets may be altered through REST. mm2 resume "
        "starts them again. A topic or a partition has no task of its own: use mm2 pause.",
        ("the whole flow", "mm2 stop mm2.properties 'A->B'"),
        ("heartbeats only", "mm2 stop mm2.properties 'A->B' --connector heartbeat"),
    )


def _add(verbs: Any, action: _Action, text: str, description: str, *rows: tuple[str, str]) -> Any:
    codes = "Exit code: 0 done, 1 requested, but not done within the timeout, 2 the command failed."
    parser = verbs.add_parser(action.verb, help=text, description=f"{description} {codes}", epilog=examples(*rows))
    add_file(parser)
    parser.add_argument(
        "--connector",
        metavar="C",
        help="only this connector: source, checkpoint or heartbeat (default: all three; to pause and to stop, all but heartbeat)",
    )
    parser.add_argument(
        "--timeout", metavar="SECONDS", type=seconds, default=30.0, help="how long to wait for the result (default: 30)"
    )
    add_access(parser)
    parser.set_defaults(run=lambda options: run(options, action), topic=None, partition=None, task=None, reason="")
    return parser


def _add_topic(parser: Any) -> None:
    parser.add_argument("--topic", metavar="T", help="a topic of the source instead of connectors")
    parser.add_argument("--partition", metavar="P", type=int, help="only this partition of the topic")


def run(options: Any, action: _Action) -> int:
    """Run the command; returns the exit code. Raises CommandError, ConfigException or KafkaFailure."""
    if options.partition is not None and options.topic is None:
        raise CommandError("--partition requires --topic.")
    if options.task is not None and options.connector is None:
        raise CommandError("--task requires --connector.")
    if options.reason and options.topic is None:
        raise CommandError("--reason requires --topic: Connect stores no reason for connectors.")
    if options.topic is None:
        return _control(options, action)
    if options.connector is not None:
        raise CommandError("Use --connector or --topic, not both.")
    return _mark(options, action)


# -- topics and partitions, through the ledger


def _mark(options: Any, action: _Action) -> int:
    flow = ConfiguredFlow.of(options.config, options.flow)
    ledger = flow.ledger()
    topic, partition = options.topic, options.partition
    known = [tp for tp in ledger.partitions() if tp.topic == topic and partition in {None, tp.partition}]
    before = {name for name in ledger.pauses() if name[0] == topic}
    if not known and (action is _PAUSE or not before):
        what = topic if partition is None else TopicPartition(topic, partition)
        raise CommandError(f"The ledger of {flow.pair} has no {what}: no record of it was copied.")
    promotion = promoted(ledger).get(topic)
    if action is _RESUME and promotion is not None and not before:
        raise CommandError(f"{topic} of {flow.pair} is {_promotion(promotion)}; mm2 resume does not continue it.")
    if action is _PAUSE:
        pause = Pause(_who(), int(time.time() * 1000), options.reason)
        records = [pause_record(topic, partition, pause)]
    else:
        if partition is not None and (topic, None) in before:
            raise CommandError(
                f"All of {topic} is paused: resume the topic, then pause the partitions that are to stay paused."
            )
        taken_back = [
            name for name in sorted(before, key=lambda name: _order((name, None))) if partition in {None, name[1]}
        ]
        records = [pause_record(*name, None) for name in taken_back]
    if records:
        write_to_ledger(MirrorClients(flow.props), records)
        for record in records:
            ledger.apply(record.key, record.value)
    deadline = time.monotonic() + options.timeout
    wrong = _not_yet(ledger, known)
    while wrong and time.monotonic() < deadline:
        time.sleep(_LOOK_EVERY_S)
        wrong = _not_yet(flow.ledger(), known)
    pauses = {name: pause for name, pause in ledger.pauses().items() if name[0] == topic}
    if options.json:
        rows = [
            {"topic": name[0], "partition": name[1], **pause._asdict()}
            for name, pause in sorted(pauses.items(), key=_order)
        ]
        waiting = [{"topic": tp.topic, "partition": tp.partition} for tp in wrong]
        write_document(options, {"flow": str(flow.pair), "topic": topic, "paused": rows, "waiting": waiting})
    else:
        sys.stdout.writelines(f"{_name(name)}: {pause}\n" for name, pause in sorted(pauses.items(), key=_order))
        if not records:
            sys.stdout.write(f"{topic if partition is None else TopicPartition(topic, partition)}: was not paused\n")
        elif action is _RESUME:
            sys.stdout.writelines(f"{_name(name)}: resumed\n" for name in taken_back)
        if promotion is not None:
            sys.stdout.write(f"{topic}: {_promotion(promotion)}\n")
    if wrong:
        names = ", ".join(map(str, wrong[:8])) + (f" and {len(wrong) - 8} more" if len(wrong) > 8 else "")
        sys.stderr.write(
            f"mm2: written to the ledger, but not applied after {options.timeout:g} s: {names}; is the flow running?\n"
        )
    return EXIT_NOT_WELL if wrong else EXIT_WELL


def _not_yet(ledger: Ledger, partitions: Collection[TopicPartition]) -> list[TopicPartition]:
    """Partitions whose ledger entry, written by the copier, does not reflect the pauses yet.

    One that has stopped until its position is reset keeps that state, whether it is paused or not.
    """
    pauses = {**ledger.pauses(), **holds(ledger)}  # the tasks apply them in this order
    found = []
    for tp in partitions:
        entry = ledger.entry(tp)
        condition = None if entry is None else entry.condition
        if condition is not None and condition.state in LASTS_UNTIL_RESET:
            continue
        paused_since_ms = (
            condition.since_ms if condition is not None and condition.state == PartitionState.PAUSED else None
        )
        wanted = paused(pauses, tp)
        if paused_since_ms != (None if wanted is None else wanted.since_ms):
            found.append(tp)
    return found


def _promotion(promotion: Promotion) -> str:
    """Why the topic is not copied, whatever its pauses are."""
    turned = "copied by the flow in the opposite direction since mm2 failback"
    return turned if promotion.turned else str(promotion.pause)


def _order(item: tuple[tuple[str, int | None], object]) -> tuple[str, int]:
    """Sort topics by name, each before its partitions."""
    (topic, partition), _ = item
    return topic, -1 if partition is None else partition


def _who() -> str:
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # a container's user may have no name
        user = f"uid {os.getuid()}"
    return f"{user}@{socket.gethostname()}"


def _name(name: tuple[str, int | None]) -> str:
    return name[0] if name[1] is None else str(TopicPartition(name[0], name[1]))


# -- connectors and tasks, through REST


def _control(options: Any, action: _Action) -> int:
    config = read_config(options.config)
    pair = pair_of(config, options.config, options.flow)
    rest = FlowRest.of(options, config, pair)
    names = rest.connectors()
    if not names:
        raise CommandError(f"{pair} has no connectors to {action.verb} yet: its leader has not created them.")
    absent = absent_connectors(names)
    if options.connector is not None:
        wanted = part_named(options.connector)
        if wanted not in names:
            why = f" {absent}." if wanted in CONNECTOR_NAMES else ""
            raise CommandError(f"{pair} has no connector {wanted} there; it has {', '.join(names) or 'none'}.{why}")
        names, absent = [wanted], ""
    elif action in {_PAUSE, _STOP}:
        # Heartbeats show that the processes of the flow run, and the opposite flow copies them: it would show missed ones.
        names = [name for name in names if name != part_named("heartbeat")]
    since = {name: rest.status(name) for name in names}
    if options.task is not None:
        tasks = [task["id"] for task in since[names[0]]["tasks"]]
        if options.task not in tasks:
            raise CommandError(f"{names[0]} has no task {options.task}; it has {', '.join(map(str, tasks)) or 'none'}.")
        rest.change("POST", names[0], f"tasks/{options.task}/restart")
    else:
        for name in names:
            rest.change(action.method, name, action.path)
    statuses, is_reached = _await(rest, names, action, options.task, options.timeout)
    done = is_reached and not absent
    if options.json:
        fields = {"flow": str(pair), "action": action.verb, "done": done, "connectors": statuses}
        write_document(options, fields | {"absent": absent or None})
    else:
        for status in statuses:
            each = ", ".join(f"task {task['id']} {task['state']}" for task in status["tasks"]) or "no tasks"
            sys.stdout.write(f"{status['name']}: {status['connector']['state']}, {each}\n")
        what = f"{action.done}{'' if options.task is None else f', task {options.task}'}"
        sys.stdout.write(f"{pair} is {what}\n" if done and options.connector is None else "")
    if absent:
        sys.stderr.write(f"mm2: {pair} is not {action.done}: {absent}.\n")
    if not is_reached:
        sys.stderr.write(f"mm2: requested, but not everything is {action.done} after {options.timeout:g} s.\n")
    elif action is _RESUME:
        _remind(options)
    return EXIT_WELL if done else EXIT_NOT_WELL


def _await(
    rest: FlowRest, names: Collection[str], action: _Action, task: int | None, timeout_s: float
) -> tuple[list[dict[str, Any]], bool]:
    """Wait for the wanted states; returns the statuses, and whether they were reached within the time limit."""
    deadline = time.monotonic() + timeout_s
    if action is _RESTART:
        time.sleep(min(_RESTART_SEEN_S, timeout_s))

    def is_so(status: dict[str, Any]) -> bool:
        tasks = [one["state"] for one in status["tasks"] if task in {None, one["id"]}]
        if action.tasks == "":
            return status["connector"]["state"] == action.connector and not tasks
        return status["connector"]["state"] == action.connector and {*tasks} <= {action.tasks}

    def patiently(ask: Callable[[], dict[str, Any]]) -> dict[str, Any] | None:
        try:
            return ask()
        except CommandError:  # briefly there is no leader, or no worker has the connector
            if time.monotonic() >= deadline:
                raise
            return None

    while True:
        found = [patiently(lambda name=name: rest.status(name)) for name in names]  # type: ignore[misc]
        statuses = [status for status in found if status is not None]
        done = len(statuses) == len(names) and all(map(is_so, statuses))
        if done or time.monotonic() >= deadline:
            return statuses, done
        time.sleep(_LOOK_EVERY_S)


def _remind(options: Any) -> None:
    """Mention topics that stay paused, if the ledger can be read."""
    try:
        pauses = ConfiguredFlow.of(options.config, options.flow).ledger().pauses()
    except Exception:  # noqa: BLE001 - the message is optional
        return
    for name, pause in sorted(pauses.items(), key=_order):
        sys.stderr.write(f"mm2: {_name(name)} stays {pause}. To continue it: mm2 resume … --topic {name[0]}\n")
