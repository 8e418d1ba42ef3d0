"""What the leader of the group adds to its membership: the assignments of a generation, and who owns what by them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import structlog

from mm2.connect.group.assignor import CooperativeAssignor, assign_eagerly, mismatch
from mm2.connect.group.protocol import decode_worker_state, encode_assignment, version_of
from mm2.connect.stores.config_state import ClusterConfigState, ConnectorTaskId
from mm2.kafka.classic_member import NO_GENERATION


class GroupLeadership:
    """Assigns connectors and tasks while this worker is the leader. ``configs`` returns the config topic as read so far.

    The membership thread assigns, any thread reads the result.
    """

    def __init__(
        self,
        assignor: CooperativeAssignor,
        configs: Callable[[], ClusterConfigState],
        log: structlog.stdlib.BoundLogger,
    ) -> None:
        self._assignor = assignor
        self._log = log
        self._configs = configs
        self._owner_urls: Mapping[str | ConnectorTaskId, str] = {}  # replaced as a whole

    def owner_url(self, work: str | ConnectorTaskId) -> str | None:
        """REST URL of the member that the last assignment gave a connector or task to."""
        return self._owner_urls.get(work)

    def assign(self, joined: Any, last_completed_generation: int, *, was_eager: bool) -> dict[str, bytes]:
        """The encoded assignment of each member in an answer to JoinGroup.

        ``last_completed_generation`` and ``was_eager`` describe this member's previous generation.
        """
        version = version_of(joined.protocol_name)
        members = {str(member.member_id): decode_worker_state(bytes(member.metadata)) for member in joined.members}
        leader = str(joined.member_id)
        configured = self._configs()
        newest = max(state.config_offset for state in members.values())
        downgraded = version == 0 and last_completed_generation != NO_GENERATION and not was_eager
        if configured.offset < newest:
            self._log.info("config offset is behind another member's", config_offset=configured.offset, newest=newest)
            outcome = mismatch(members, leader, newest, version)
        elif downgraded:
            # Each member kept its work during this join, but an eager join does not report it. Assign nothing until all
            # members have rejoined without work in the next round; otherwise a task could start on one member before it
            # has stopped on another.
            self._log.info("group protocol is now eager; all work stops before it is assigned again")
            outcome = mismatch(members, leader, newest, version)
        elif version == 0:
            outcome = assign_eagerly(members, leader, configured)
        else:
            outcome = self._assignor.assign(
                members,
                leader,
                configured,
                generation=int(joined.generation_id),
                last_completed_generation=last_completed_generation,
                version=version,
            )
        owner_urls: dict[str | ConnectorTaskId, str] = {}
        for member, load in outcome.owners.items():
            owner_urls.update(dict.fromkeys([*load.connectors, *load.tasks], members[member].url))
        self._owner_urls = owner_urls
        return {member: encode_assignment(received, version) for member, received in outcome.assignments.items()}
