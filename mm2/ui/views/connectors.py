"""Connectors and their tasks: where they run, which have failed and why, and the actions on them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final
from urllib.parse import quote

from mm2.config.mirrormaker import SourceAndTarget
from mm2.connect.rest.access.authorization import Access
from mm2.connect.rest.access.roles import Role
from mm2.observer.traces import reason_of
from mm2.observer.views import ConnectorView, FlowView, Snapshot
from mm2.ui.elements.actions import ACTIONS, PAUSE, RESTART, RESTART_TASK, RESUME, STOP, Action, Actions, Subject
from mm2.ui.elements.parts import Cell, Column, Confirmation, Element, Row, Table, within
from mm2.ui.elements.wording import worker_name

_TASKS: Final = (
    Column("Task", "head"),
    Column("State", "word"),
    Column("Worker"),
    Column("Error", "prose"),
    Column("Action", "action"),
)
#: Requested states in which an action has no effect.
_POINTLESS: Final[Mapping[Action, frozenset[str]]] = {
    PAUSE: frozenset({"PAUSED"}),
    RESUME: frozenset({"STARTED"}),
    RESTART: frozenset({"STOPPED"}),
    STOP: frozenset({"STOPPED"}),
}
_MOST_TASKS: Final = 1_000
_Confirm = Callable[[Action, Subject], Awaitable[None]]


class ConnectorsView:
    """One block per connector."""

    def __init__(self, actions: Actions, access: Access) -> None:
        self._actions = actions
        self._access = access
        self._blocks: dict[tuple[str, str], _ConnectorBlock] = {}
        Element("h1", "Connectors")
        Element(
            "p",
            "Each flow is three connectors: the source connector copies, the checkpoint connector translates the committed "
            "offsets of groups, the heartbeat connector writes heartbeats.",
            "lead",
        )
        self._failed = within("ul", "errors hidden", aria_label="Failures")
        self._failures: Sequence[tuple[str, str]] = ()
        self._message = Element("p", "", "message", role="status")
        self._confirmation = Confirmation()
        self._nothing = Element("p", "No connector is configured yet.", "nothing", role="status")
        self._container = within("div")

    def show(self, snapshot: Snapshot) -> None:
        """See View."""
        present = {(flow.name, connector.name) for flow in snapshot.flows for connector in flow.connectors}
        for removed in self._blocks.keys() - present:
            self._blocks.pop(removed).element.delete()
        for flow in snapshot.flows:
            for connector in flow.connectors:
                key = (flow.name, connector.name)
                if key not in self._blocks:
                    with self._container:
                        ask = self._ask if self._access.allows(Role.OPERATOR) else None
                        self._blocks[key] = _ConnectorBlock(flow, connector, ask)
                self._blocks[key].show(connector)
        self._nothing.set_visibility(not present)
        self._show_failures(snapshot)

    def _show_failures(self, snapshot: Snapshot) -> None:
        """Show failures at the top: the connector's block may be far down."""
        found = [
            (_anchor(flow, connector), sentence)
            for flow in snapshot.flows
            for connector in flow.connectors
            for sentence in failures(flow, connector)
        ]
        if found != self._failures:
            self._failures = found
            self._failed.clear()
            with self._failed:
                for anchor, sentence in found:
                    with within("li"):
                        Element("a", sentence, href=f"#{anchor}")
        self._failed.show_classes("errors" if found else "errors hidden")

    async def _ask(self, action: Action, subject: Subject) -> None:
        if not await self._confirmation.ask(
            f"{action.name} {subject}?", action.consequence, action.name, is_destructive=action.is_destructive
        ):
            return
        self._message.show(f"{action.name} {subject} …")
        self._message.show_classes("message")
        succeeded, text = await self._actions.do(action, subject, self._access)
        self._message.show(text)
        self._message.show_classes("message ok" if succeeded else "message bad")


class _ConnectorBlock:
    def __init__(self, flow: FlowView, connector: ConnectorView, ask: _Confirm | None) -> None:
        """``ask`` None: the client may not control connectors."""
        self._may_act = ask is not None
        pair = SourceAndTarget(flow.source, flow.target)
        self._subject = Subject(pair, connector.name)
        with within("section", "connector", aria_label=str(self._subject), id=_anchor(flow, connector)) as self.element:
            with within("div", "line"):
                Element("h2", connector.name)
                Element("span", flow.name, "muted")
                self._state = Element("span", role="status")
                self._wanted = Element("span", "", "muted")
                self._buttons: dict[Action, Element] = {}
                with within("span", "buttons"):
                    for action in ACTIONS:
                        button = Element(
                            "button",
                            action.name,
                            "plain dangerous" if action.is_destructive else "plain",
                            type="button",
                            aria_label=f"{action.name} {self._subject}",
                        )
                        self._buttons[action] = button
                        if ask is None:
                            button.attribute("disabled", True)
                            button.attribute("title", f"needs the role {Role.OPERATOR}")
                        else:
                            button.on("click", lambda _, action=action, ask=ask: ask(action, self._subject), args=[])
            self._trace = _Trace("Stack trace of the connector")
            self._tasks = Table(
                _TASKS,
                caption=f"Tasks of {self._subject}",
                nothing="It has no tasks.",
                rows=_MOST_TASKS,
                action=None
                if ask is None
                else (RESTART_TASK.name, lambda task: ask(RESTART_TASK, Subject(pair, connector.name, task))),
            )
            self._traces = within("div")
            self._shown: dict[int, _Trace] = {}

    def show(self, connector: ConnectorView) -> None:
        """Show the current state."""
        workers = {task.worker_id for task in connector.tasks}
        self._state.show_state(connector.state, tone="paused" if connector.state == "STOPPED" else "")
        wanted = {"PAUSED": "paused by a user", "STOPPED": "stopped by a user"}
        self._wanted.show(wanted.get(connector.target_state, ""))
        for action, button in self._buttons.items() if self._may_act else ():
            button.attribute("disabled", connector.target_state in _POINTLESS[action])
        self._trace.show(connector.trace)
        self._tasks.show(
            [
                Row(
                    (
                        str(task.id),
                        Cell(task.state, state=True),
                        Cell(worker_name(task.worker_id, workers), hint=task.worker_id),
                        reason_of(task.trace),
                    ),
                    key=task.id,
                )
                for task in connector.tasks
            ]
        )
        failed = {task.id: task.trace for task in connector.tasks if task.trace}
        for removed in self._shown.keys() - failed.keys():
            self._shown.pop(removed).element.delete()
        for number, trace in failed.items():
            if number not in self._shown:
                with self._traces:
                    self._shown[number] = _Trace(f"Stack trace of task {number}")
            self._shown[number].show(trace)


def failures(flow: FlowView, connector: ConnectorView) -> Sequence[str]:
    """A message for the connector and for each of its tasks that has failed."""
    name = f"{connector.name} of {flow.name}"
    failed = [name] if connector.state == "FAILED" else []
    failed += [f"Task {task.id} of {name}" for task in connector.tasks if task.state == "FAILED"]
    return [f"{one} has failed" for one in failed]


def _anchor(flow: FlowView, connector: ConnectorView) -> str:
    return f"connector-{quote(flow.name)}-{quote(connector.name)}"


class _Trace:
    """The stack trace of an error, shown on request."""

    def __init__(self, title: str) -> None:
        with within("details", "trace") as self.element:
            Element("summary", title)
            self._text = Element("pre", tabindex="0")
        self.element.set_visibility(False)

    def show(self, trace: str) -> None:
        self._text.show(trace)
        self.element.set_visibility(bool(trace))
