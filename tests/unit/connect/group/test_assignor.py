"""The leader's assignments. The scenario ran on Java Connect 4.3.0; tests compare counts, not the order."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from mm2.connect.group.assignor import CooperativeAssignor, GroupAssignment, assign_eagerly, mismatch
from mm2.connect.group.protocol import CONFIG_MISMATCH, URL_NOT_USED, WorkerAssignment, WorkerState
from mm2.connect.stores.config_state import ConnectorTaskId


@dataclass
class Configs:
    tasks_of: dict[str, int]
    offset: int = 7

    def connectors(self) -> list[str]:
        return list(self.tasks_of)

    def tasks(self, connector: str) -> list[ConnectorTaskId]:
        return [ConnectorTaskId(connector, n) for n in range(self.tasks_of[connector])]


@dataclass
class Group:
    """Members that apply every assignment, as cooperative workers do."""

    configs: Configs
    max_delay_ms: int = 300_000
    url: str = "http://h/"
    now_ms: int = 1_000_000
    generation: int = 0
    held: dict[str, tuple[list[str], list[ConnectorTaskId]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.assignor = CooperativeAssignor(self.max_delay_ms, lambda: self.now_ms)

    def round(self, *members: str, leader: str | None = None) -> GroupAssignment:
        self.held = {member: self.held.get(member, ([], [])) for member in members}
        states = {
            member: WorkerState(self.url, 7, WorkerAssignment(0, "L", self.url, 7, tuple(cs), tuple(ts)))
            for member, (cs, ts) in self.held.items()
        }
        outcome = self.assignor.assign(
            states,
            leader or members[0],
            self.configs,
            generation=self.generation + 1,
            last_completed_generation=self.generation or -1,
            version=2,
        )
        self.generation += 1
        for member, assigned in outcome.assignments.items():
            connectors, tasks = self.held[member]
            self.held[member] = (
                [c for c in connectors if c not in assigned.revoked_connectors] + list(assigned.connectors),
                [t for t in tasks if t not in assigned.revoked_tasks] + list(assigned.tasks),
            )
        return outcome

    def loads(self) -> dict[str, tuple[int, int]]:
        return {member: (len(cs), len(ts)) for member, (cs, ts) in self.held.items()}

    def unique(self) -> bool:
        connectors = Counter(c for cs, _ in self.held.values() for c in cs)
        tasks = Counter(t for _, ts in self.held.values() for t in ts)
        return set(connectors.values()) | set(tasks.values()) <= {1}


def new(outcome: GroupAssignment) -> dict[str, tuple[int, int]]:
    return {m: (len(a.connectors), len(a.tasks)) for m, a in outcome.assignments.items()}


def revoked(outcome: GroupAssignment) -> dict[str, tuple[int, int]]:
    return {m: (len(a.revoked_connectors), len(a.revoked_tasks)) for m, a in outcome.assignments.items()}


def delay(outcome: GroupAssignment) -> int:
    (common,) = {a.delay_ms for a in outcome.assignments.values()}
    return common


def test_scenario_measured_on_java() -> None:
    group = Group(Configs({"c1": 4, "c2": 4}))
    outcome = group.round("w1", "w2")
    assert new(outcome) == {"w1": (1, 4), "w2": (1, 4)}
    assert delay(outcome) == 0

    outcome = group.round("w1", "w2", "w3")
    assert revoked(outcome) == {"w1": (0, 1), "w2": (0, 1), "w3": (0, 0)}
    assert new(outcome) == {"w1": (0, 0), "w2": (0, 0), "w3": (0, 0)}
    assert delay(outcome) == 0

    group.round("w1", "w2", "w3")
    assert group.loads() == {"w1": (1, 3), "w2": (1, 3), "w3": (0, 2)}

    group.now_ms += 1_000
    outcome = group.round("w1", "w3")
    assert group.loads() == {"w1": (1, 3), "w3": (0, 2)}
    assert delay(outcome) == 300_000

    group.now_ms += 100_000
    assert delay(group.round("w1", "w3")) == 200_000

    group.now_ms += 200_000
    outcome = group.round("w1", "w3")
    assert new(outcome) == {"w1": (0, 1), "w3": (1, 2)}
    assert delay(outcome) == 0
    assert group.unique()

    group.round("w1")
    group.now_ms += 10_000
    outcome = group.round("w1", "w3-again")
    assert delay(outcome) == 290_000
    assert new(outcome) == {"w1": (0, 0), "w3-again": (0, 0)}

    group.now_ms += 290_000
    outcome = group.round("w1", "w3-again")
    assert new(outcome) == {"w1": (0, 0), "w3-again": (1, 4)}


def test_deleting_a_connector_revokes_and_balances_in_the_same_round() -> None:
    group = Group(Configs({"c1": 4, "c2": 4}))
    group.round("w1", "w2")
    group.held = {
        "w1": (["c1"], [ConnectorTaskId("c1", 0), ConnectorTaskId("c2", 0), ConnectorTaskId("c2", 1)]),
        "w2": (["c2"], [ConnectorTaskId("c2", n) for n in (2, 3)] + [ConnectorTaskId("c1", n) for n in (1, 2, 3)]),
    }
    group.held["w1"][1].append(ConnectorTaskId("c2", 2))
    group.held["w2"][1].remove(ConnectorTaskId("c2", 2))
    del group.configs.tasks_of["c1"]
    outcome = group.round("w1", "w2")
    assert revoked(outcome) == {"w1": (1, 1 + 1), "w2": (0, 3)}
    group.round("w1", "w2")
    assert sorted(tasks for _, tasks in group.loads().values()) == [2, 2]


def test_second_revoking_round_in_a_row_waits() -> None:
    group = Group(Configs({"c1": 4, "c2": 4}))
    group.round("w1", "w2")
    assert any(sum(r) for r in revoked(group.round("w1", "w2", "w4")).values())
    outcome = group.round("w1", "w2", "w4", "w5")
    assert not any(sum(r) for r in revoked(outcome).values())
    assert delay(outcome) == 40
    group.now_ms += 40
    outcome = group.round("w1", "w2", "w4", "w5")
    assert any(sum(r) for r in revoked(outcome).values())
    group.round("w1", "w2", "w4", "w5")
    assert sorted(tasks for _, tasks in group.loads().values()) == [2, 2, 2, 2]


def test_zero_delay_reassigns_lost_work_at_once() -> None:
    group = Group(Configs({"c1": 3}), max_delay_ms=0)
    group.round("w1", "w2")
    outcome = group.round("w1")
    assert delay(outcome) == 0
    assert group.loads() == {"w1": (1, 3)}


def test_work_that_did_not_arrive_is_reassigned_when_nobody_left() -> None:
    group = Group(Configs({"c1": 4}))
    group.round("w1", "w2")
    group.held["w2"] = ([], [])
    outcome = group.round("w1", "w2")
    assert delay(outcome) == 0
    assert sum(tasks for _, tasks in group.loads().values()) == 4
    assert group.unique()


def test_duplicated_work_is_revoked_from_all_owners() -> None:
    group = Group(Configs({"c1": 2}))
    group.round("w1", "w2")
    twice = ConnectorTaskId("c1", 0)
    for _, tasks in group.held.values():
        if twice not in tasks:
            tasks.append(twice)
    outcome = group.round("w1", "w2")
    assert all(twice in assigned.revoked_tasks for assigned in outcome.assignments.values())
    group.round("w1", "w2")
    assert group.unique()
    assert sum(tasks for _, tasks in group.loads().values()) == 2


def test_without_rest_urls_connectors_live_on_the_leader() -> None:
    group = Group(Configs({"c1": 4, "c2": 1, "c3": 1}), url=URL_NOT_USED)
    group.round("w1", "w2", leader="w2")
    assert group.loads() == {"w1": (0, 3), "w2": (3, 3)}


def test_connectors_follow_a_new_leader_in_two_phases() -> None:
    group = Group(Configs({"c1": 4, "c2": 1, "c3": 1}), url=URL_NOT_USED)
    group.round("w1", "w2", leader="w2")
    group.assignor = CooperativeAssignor(300_000, lambda: group.now_ms)  # leadership moves: no memory
    outcome = group.round("w1", "w2", leader="w1")
    assert revoked(outcome) == {"w1": (0, 0), "w2": (3, 0)}
    assert new(outcome)["w1"] == (0, 0)
    group.round("w1", "w2", leader="w1")
    assert group.loads() == {"w1": (3, 3), "w2": (0, 3)}
    assert group.unique()


def test_a_leader_that_lost_its_connectors_is_reassigned_them_without_delay() -> None:
    group = Group(Configs({"c1": 2}), url=URL_NOT_USED)
    group.round("w1", "w2", leader="w1")
    group.held["w1"] = ([], [])
    group.held["w1-new-id"] = group.held.pop("w1")
    outcome = group.round("w1-new-id", "w2", leader="w1-new-id")
    assert outcome.assignments["w1-new-id"].connectors == ("c1",)
    assert delay(outcome) == 300_000


def test_members_with_urls_share_connectors_as_java_does() -> None:
    group = Group(Configs({"c1": 1, "c2": 1}))
    group.round("w1", "w2")
    assert group.loads() == {"w1": (1, 1), "w2": (1, 1)}


def test_eager_assigns_connectors_and_then_tasks() -> None:
    states = {m: WorkerState("u", 7) for m in ("w2", "w1")}
    outcome = assign_eagerly(states, "w1", Configs({"b": 2, "a": 1}))
    assert outcome.assignments["w1"].connectors == ("a",)
    assert outcome.assignments["w2"].connectors == ("b",)
    assert outcome.assignments["w1"].tasks == (ConnectorTaskId("a", 0), ConnectorTaskId("b", 1))
    assert outcome.assignments["w2"].tasks == (ConnectorTaskId("b", 0),)


def test_eager_leader_without_rest_urls_keeps_the_connectors() -> None:
    states = {m: WorkerState(URL_NOT_USED, 7) for m in ("w2", "w1")}
    outcome = assign_eagerly(states, "w2", Configs({"b": 2, "a": 1}))
    assert outcome.assignments["w2"].connectors == ("a", "b")
    assert {len(assigned.tasks) for assigned in outcome.assignments.values()} == {1, 2}


def test_mismatch_sends_every_member_the_offset_to_read_to() -> None:
    states = {"w1": WorkerState("u", 3), "w2": WorkerState("u", 9)}
    outcome = mismatch(states, "w1", 9, 2)
    assert {(a.error, a.config_offset) for a in outcome.assignments.values()} == {(CONFIG_MISMATCH, 9)}
