"""Where each partition's copying begins, and under which producer (see `mm2.copy.session`).

==== what is known ======================== what is done =============================================================
  a session, handed over cleanly             go on
  a session, its last holder died            ask the target how far it got, read past what is there
  a session, but its target is another one   stop: RECREATED
  a session under other rules                read past what is there under its rules, then a new session
  a position only                            a new session, written to the ledger before the first batch is sent
  nothing                                    the same, from where auto.offset.reset says
======================================================================================================================
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any, Final

import structlog
from kafka.protocol.producer import InitProducerIdRequest

from mm2.copy.executor.cursor import Cursor
from mm2.copy.executor.link import DriverLink
from mm2.copy.executor.sink import Sink
from mm2.copy.executor.source import Source
from mm2.copy.executor.standing import Inspector, Standing
from mm2.copy.executor.topic_ids import retire
from mm2.copy.segments import Trail
from mm2.copy.session import RULES, Entry, Mark, Session, Start, rules_of
from mm2.copy.spec import CopySpec
from mm2.copy.states import State
from mm2.kafka.admin import Admin
from mm2.kafka.cluster import Cluster
from mm2.kafka.errors import BrokerFailure, KafkaFailure
from mm2.kafka.structs import EARLIEST, LATEST, OffsetInfo, ProducerIdentity, TopicPartition

_AGAIN_S: Final = 0.25
_FRESH_AGAIN_S: Final = 0.5

Call = Callable[..., Awaitable[Any]]


class Opening:
    """Brings cursors to their first position. ``commit(cursor, then)`` writes a cursor's entry and calls ``then``."""

    def __init__(
        self,
        spec: CopySpec,
        link: DriverLink,
        source: Source,
        sink: Sink,
        source_cluster: Cluster,
        target_cluster: Cluster,
        cursors: Mapping[TopicPartition, Cursor],
        call: Call,
        commit: Callable[[Cursor, Callable[[], None]], None],
        on_truncated: Callable[[Cursor, int, int], None],
    ) -> None:
        self._spec = spec
        self._link = link
        self._source = source
        self._sink = sink
        self._source_admin = Admin(source_cluster)
        self._target_cluster = target_cluster
        self._target_admin = Admin(target_cluster)
        self._inspector = Inspector(target_cluster)
        self._cursors = cursors
        self._call = call
        self._commit = commit
        self._on_truncated = on_truncated
        self._tasks: set[asyncio.Task[None]] = set()
        self.sessions: dict[TopicPartition, Session] = {}
        self._behind: dict[TopicPartition, int] = {}  # target offset behind what the mark counts
        self._marks: dict[TopicPartition, Mark] = {}  # as the ledger has them
        self._rules = rules_of(read_committed=spec.read_committed)
        self._log = structlog.get_logger(__name__)

    @property
    def with_sessions(self) -> bool:
        """Sequences are positions; else a transaction sees to it, or nobody does."""
        return self._spec.ledger_topic is not None and self._spec.transactions is None

    def check_rights(self) -> None:
        """Say what a crash would cost, and not only after one (see `_may_ask`)."""
        if self.with_sessions:
            self._spawn(self._may_ask())

    def begin(self, starts: Mapping[TopicPartition, Start]) -> None:
        """Begin with every partition, each as soon as it can."""
        self._begin(starts, None)

    def _begin(self, starts: Mapping[TopicPartition, Start], only: Collection[TopicPartition] | None) -> None:
        """``only``: these partitions, whose remote topics' ids are certain."""
        going_on, asking, positions, named = [], [], {}, {}
        renamed: dict[TopicPartition, Start] = {}
        for tp, cursor in self._cursors.items():
            if only is not None and tp not in only:
                continue
            start = starts.get(tp, Start(None))
            entry = start.entry
            if entry is not None and only is None and self._has_another_target(entry):
                renamed[tp] = start
                continue
            if entry is not None:
                self._remember(cursor, entry, start)
            if entry is not None and not start.moved and self._has_another_target(entry):
                cursor.fail(State.RECREATED, self.recreated(entry.target, entry.mark.records))
                continue
            if entry is None and start.committed is None and start.position is not None:
                named[tp] = start.position
            elif entry is None or entry.session is None or not self.with_sessions:
                positions[tp] = start.position
            elif start.clean and self._has_other_rules(entry):
                positions[tp] = entry.mark.source
            elif start.clean:
                going_on.append((cursor, entry))
            elif self._has_other_rules(entry) and entry.session.rules not in RULES:
                cursor.note = (
                    f"at least once: a predecessor counted records under unknown rules ({entry.session.rules})"
                )
                self._log.warning(cursor.note, partition=str(tp))
                positions[tp] = entry.mark.source
            else:
                asking.append((cursor, entry))
        for cursor, entry in going_on:
            self._go_on(cursor, entry, entry.mark.records)
        self._spawn(self._ask(asking))
        self._spawn(self._open(positions))
        for topic in {self._cursors[tp].spec.remote_topic for tp in renamed}:
            rows = {tp: start for tp, start in renamed.items() if self._cursors[tp].spec.remote_topic == topic}
            self._spawn(self._begin_certainly(topic, rows))
        if named:
            self._spawn(self._open_where(dict.fromkeys(named, LATEST), named))

    async def _begin_certainly(self, topic: str, starts: Mapping[TopicPartition, Start]) -> None:
        """Begin where metadata gave a remote topic another id than the ledger: one answer may be stale."""
        known = [start.entry for start in starts.values() if start.entry is not None]
        # Partitions of one topic may have been written before and after it was created again.
        retired = {topic_id for entry in known for topic_id in entry.retired}
        newest = next((entry.target_id for entry in known if entry.target_id not in retired), known[0].target_id)
        if await self._sink.settle_id(topic, newest, retired):
            self._begin(starts, starts.keys())

    def open_again(self, cursor: Cursor, mark: Mark) -> None:
        """A new session from a mark: the old one cannot go on."""
        self.sessions.pop(cursor.partition, None)
        self._spawn(self._open({cursor.partition: mark.source}))

    def open_next(self, cursor: Cursor) -> None:
        """A new session under the present rules: what a session under other rules has copied was read past.

        The ledger names the old session until the new one is written, so another crash changes nothing.
        """
        cursor.finishing = False
        cursor.read_committed = self._spec.read_committed
        self._source.isolate(cursor.partition, committed=False)
        self._spawn(self._open({cursor.partition: cursor.position}))

    def _has_other_rules(self, entry: Entry) -> bool:
        """Whether the count of a session has other records than we would copy."""
        return entry.session is not None and entry.session.rules not in ("", self._rules)

    def _use_rules_of(self, cursor: Cursor, entry: Entry) -> None:
        """Read a partition as its session's rules say."""
        if entry.session is not None and self._has_other_rules(entry):
            cursor.read_committed = RULES[entry.session.rules]
            self._source.isolate(cursor.partition, committed=cursor.read_committed)

    def match(self, cursor: Cursor) -> None:
        """Find out by content what of a partition is on the target already (`Cursor.uncertain`)."""
        self._spawn(self._match(cursor))

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._over)

    def _over(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._link.fail(error)

    def _remember(self, cursor: Cursor, entry: Entry, start: Start) -> None:
        cursor.trail = Trail(start.chunk, entry.gaps)
        cursor.retired = entry.retired
        if start.moved and self._has_another_target(entry):
            cursor.trail.begin_anew()
            cursor.retired = retire(cursor.retired, entry.target_id)
        cursor.lost, cursor.lost_before = list(entry.lost), entry.lost_before
        cursor.foreign = entry.foreign
        cursor.rate = float(entry.rate)
        if not start.moved:
            cursor.leader_epoch = entry.source_epoch
            cursor.known_epoch = entry.known_epoch
            cursor.topic_id = entry.source_id
            cursor.known_end = entry.end
            self._marks[cursor.partition] = entry.mark

    def _has_another_target(self, entry: Entry) -> bool:
        """Whether the remote topic is another one than the ledger knows."""
        now = self._sink.topic_ids.get(entry.remote_topic, "")
        return bool(now and entry.target_id) and now != entry.target_id

    def recreated(self, target: TopicPartition, records: int) -> str:
        """What to say of a remote topic that is another one now."""
        return (
            f"{target} of {self._spec.target_alias} was deleted and created anew, {records} records that were copied to it "
            "are gone; reset the position of this partition to have it copied again"
        )

    def _go_on(self, cursor: Cursor, entry: Entry, records: int, *, end: int = -1) -> None:
        session = entry.session
        if session is None:
            return
        mark = entry.mark
        skip = records - mark.records
        base = mark.target if skip and end >= 0 and mark.target >= 0 and end - mark.target == skip else -1
        self.sessions[cursor.partition] = session
        cursor.outbox.looked_up = True
        cursor.outbox.begin(session.producer, records, known=False)
        cursor.outbox.end_offset = mark.target if not skip else -1
        cursor.begin(mark, skip=skip, skip_base=base)
        self._behind[cursor.partition] = mark.target
        if skip:
            self._log.info("reading past what a predecessor has copied", partition=str(cursor.partition), records=skip)
        self._sink.wake(cursor.outbox)
        self._source.add([cursor])

    # -- sessions whose holder died ------------------------------------------------------------------------------------

    async def _ask(self, asking: list[tuple[Cursor, Entry]]) -> None:
        waiting = {entry.target: (cursor, entry) for cursor, entry in asking}
        while waiting and not self._link.stop.is_set():
            questions = {
                tp: (entry.session.producer, entry.mark.records, entry.mark.target)
                for tp, (_, entry) in waiting.items()
                if entry.session is not None
            }
            blind: dict[TopicPartition, int | None] = {}
            for tp, answer in (await self._standings(questions)).items():
                cursor, entry = waiting[tp]
                if isinstance(answer, Standing):
                    del waiting[tp]
                    if self._has_other_rules(entry) and answer.records == entry.mark.records:
                        blind[cursor.partition] = entry.mark.source
                    else:
                        self._go_on_from(cursor, entry, answer)
                elif not answer.is_final:
                    cursor.outbox.complaint = answer
                else:
                    del waiting[tp]
                    cursor.note = f"at least once: how far a predecessor got is not to be known: {answer}"
                    self._log.warning(cursor.note, partition=str(cursor.partition))
                    blind[cursor.partition] = entry.mark.source
            if blind:
                self._spawn(self._open(blind))
            if waiting:
                await self._link.pause(_AGAIN_S)

    def _go_on_from(self, cursor: Cursor, entry: Entry, standing: Standing) -> None:
        self._use_rules_of(cursor, entry)
        if standing.records < entry.mark.records:
            self._go_on(cursor, entry, entry.mark.records)
            cursor.held = True
            self._on_truncated(cursor, standing.records, standing.end)
            return
        cursor.finishing = self._has_other_rules(entry)
        self._go_on(cursor, entry, standing.records, end=standing.end)

    async def _may_ask(self) -> None:
        """Whoever may not READ a remote topic cannot tell how far a predecessor got. One partition of each topic is asked about."""
        asked = {part.remote_topic: part.target for part in self._spec.partitions}
        try:
            answers = await self._call(self._target_admin.describe_producers, asked.values())
        except KafkaFailure:
            return  # who cannot be asked now is no less able to answer after a crash
        for target, answer in answers.items():
            if not isinstance(answer, KafkaFailure) or not answer.is_final:
                continue
            if isinstance(answer, BrokerFailure) and answer.stale_metadata:
                continue
            note = f"at least once: after a crash it could not be told how far copying got: {answer}"
            for cursor in self._cursors.values():
                if cursor.spec.remote_topic == target.topic:
                    cursor.note = note

    async def _standings(
        self, questions: Mapping[TopicPartition, tuple[ProducerIdentity, int, int]]
    ) -> Mapping[TopicPartition, Standing | KafkaFailure]:
        if not questions:
            return {}
        try:
            found: Mapping[TopicPartition, Standing | KafkaFailure] = await self._call(
                self._inspector.standings, questions
            )
        except KafkaFailure as error:
            return dict.fromkeys(questions, error)
        return found

    async def look_up(
        self, questions: Mapping[TopicPartition, tuple[ProducerIdentity, int, int]]
    ) -> Mapping[TopicPartition, Standing | KafkaFailure]:
        """For the sink: how far producers got."""
        return await self._standings(questions)

    async def _match(self, cursor: Cursor) -> None:
        partition = cursor.partition
        session = self.sessions.get(partition)
        while not self._link.stop.is_set() and session is not None:
            first = cursor.skip_base if cursor.skip_base >= 0 else cursor.target
            first = first if first >= 0 else self._behind.get(partition, -1)
            if first < 0:
                break
            try:
                ends = await self._call(self._target_admin.list_offsets, {cursor.spec.target: LATEST})
                end = ends[cursor.spec.target]
                if isinstance(end, KafkaFailure):
                    raise end
                prints = await self._call(
                    self._inspector.fingerprints, cursor.spec.target, first, end.offset, session.producer
                )
            except KafkaFailure as error:
                cursor.outbox.complaint = error
                if error.is_final:
                    break
                await self._link.pause(_AGAIN_S)
                continue
            self._log.info(
                "records that a predecessor copied are compared with the source by content",
                partition=str(partition),
                records=cursor.skip,
            )
            cursor.match = deque(prints.values[-cursor.skip :])
            cursor.match_with_time = prints.with_time
            if len(cursor.match) < cursor.skip:
                # They are there all the same for the count; but what is left of them on the source counts as new.
                cursor.note = f"at least once: {cursor.spec.target} was compacted while nobody copied"
                self._log.warning(cursor.note)
                cursor.records += cursor.skip - len(cursor.match)
                cursor.skip = len(cursor.match)
                cursor.target = -1
            if not cursor.match:
                cursor.match = None
            cursor.skip_base = -1
            cursor.outbox.complaint = None
            cursor.held = False
            self._source.resume()
            return
        if not self._link.stop.is_set():
            cursor.note = f"at least once: what of {partition} is on the target after a crash cannot be told any more"
            self._log.warning(cursor.note)
            self.open_again(cursor, cursor.mark)

    # -- new sessions --------------------------------------------------------------------------------------------------

    async def _open(self, positions: dict[TopicPartition, int | None]) -> None:
        """Find positions that are not known, then open a session for each partition."""
        known = {tp: position for tp, position in positions.items() if position is not None}
        fresh = [tp for tp, position in positions.items() if position is None]
        if known:
            self._spawn(self._open_at(known))
        if fresh:
            await self._open_fresh(fresh)

    async def _open_fresh(self, missing: list[TopicPartition]) -> None:
        """Where partitions without a position begin; one that cannot be told holds up no other."""
        spec = self._spec
        reset = spec.auto_offset_reset
        if reset == "none" and spec.start_timestamp_ms is None:
            for tp in missing:
                self._cursors[tp].fail(
                    State.LOST_RANGE, f"{tp} has no committed position and auto.offset.reset is none"
                )
            return
        when = dict.fromkeys(missing, LATEST if reset == "latest" else EARLIEST)
        if spec.start_timestamp_ms is not None:
            when = dict.fromkeys(missing, spec.start_timestamp_ms)
        elif reset.startswith("by_duration:"):
            when = dict.fromkeys(missing, int(time.time() * 1000) - duration_ms(reset.removeprefix("by_duration:")))
        await self._open_where(when, {})

    async def _open_where(self, when: dict[TopicPartition, int], named: Mapping[TopicPartition, int]) -> None:
        """Begin at what ListOffsets answers to ``when``, or at offsets that are ``named`` and do not lie behind it.

        Nobody has read up to a named offset yet: a log that ends before it has lost nothing.
        """
        while when and not self._link.stop.is_set():
            try:
                results = await self._call(self._source_admin.list_offsets, when)
            except KafkaFailure as error:
                results = dict.fromkeys(when, error)
            found = {}
            for tp, result in results.items():
                if isinstance(result, OffsetInfo) and result.offset >= 0:
                    found[tp] = min(result.offset, named.get(tp, result.offset))
                    if found[tp] < named.get(tp, 0):
                        self._log.warning(
                            "the log ends before the offset at which copying was to begin; it begins at the end",
                            partition=str(tp),
                            offset=named[tp],
                            end=result.offset,
                        )
                    del when[tp]
                elif isinstance(result, OffsetInfo):
                    when[tp] = LATEST  # nothing is as young as asked: the end
                elif isinstance(result, BrokerFailure):
                    self._cursors[tp].failed(result)
                else:
                    self._cursors[tp].say(State.UNREACHABLE, str(result))
            if found:
                self._spawn(self._open_at(found))
            if when:
                await self._link.pause(_FRESH_AGAIN_S)

    async def _open_at(self, positions: Mapping[TopicPartition, int]) -> None:
        if self._spec.transactions is not None:
            for tp, position in positions.items():
                mark = self._marks.get(tp)
                self._cursors[tp].trail.settle()
                self._cursors[tp].begin(mark if mark is not None and mark.source == position else Mark(position, -1, 0))
                self._cursors[tp].markers = None
            self._source.add(self._cursors[tp] for tp in positions)
            return
        waiting = dict(positions)
        while waiting and not self._link.stop.is_set():
            targets = {self._cursors[tp].spec.target: tp for tp in waiting}
            try:
                # One producer for all of them, and a new one each time: within one its sequences only grow.
                identity = await self._call(self._new_identity)
                ends = await self._call(self._target_admin.list_offsets, dict.fromkeys(targets, LATEST))
            except KafkaFailure as error:
                for tp in waiting:
                    self._cursors[tp].outbox.complaint = error
                await self._link.pause(_AGAIN_S)
                continue
            for target, end in ends.items():
                tp = targets[target]
                cursor = self._cursors[tp]
                if isinstance(end, OffsetInfo):
                    self._open_one(cursor, Mark(waiting.pop(tp), end.offset, 0), identity)
                elif end.is_final and not end.stale_metadata:
                    # It may be written all the same; where it ends is then not known.
                    self._open_one(cursor, Mark(waiting.pop(tp), -1, 0), identity)
                else:
                    cursor.outbox.complaint = end
            if waiting:
                await self._link.pause(_AGAIN_S)

    def _open_one(self, cursor: Cursor, mark: Mark, identity: ProducerIdentity) -> None:
        cursor.trail.settle()
        cursor.begin(mark)
        cursor.outbox.complaint = None
        cursor.outbox.queue.clear()
        cursor.outbox.identity = ProducerIdentity(-1, -1)  # nothing goes under an earlier one meanwhile
        if not self.with_sessions:
            cursor.outbox.begin(identity, 0, known=False)
            self._source.add([cursor])
            return
        self.sessions[cursor.partition] = Session(identity, mark, self._rules)
        cursor.outbox.looked_up = True
        if cursor.known_epoch < 0:
            cursor.known_epoch = self._source.leader_epoch(cursor.partition)
        # Fetched already, and sent as soon as the ledger knows of the session.
        self._source.add([cursor])

        def known() -> None:
            cursor.outbox.begin(identity, 0, known=False)
            cursor.outbox.end_offset = mark.target
            self._sink.go_on(cursor.outbox)

        self._commit(cursor, known)

    def _new_identity(self) -> ProducerIdentity:
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000, max_version=4)
        cluster = self._target_cluster
        answer: Any = cluster.send(None, request)
        if answer.error_code:
            raise BrokerFailure.of(answer.error_code, subject=f"asking cluster {cluster.name} for a producer id")
        return ProducerIdentity(answer.producer_id, answer.producer_epoch)


def duration_ms(text: str) -> int:
    """Milliseconds of an ISO 8601 duration such as P3DT12H (KIP-1106); ValueError for anything else."""
    import re  # noqa: PLC0415  (rare: workers start faster without)

    match = re.fullmatch(r"P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?)?", text)
    if match is None or not any(match.groups()):
        message = f"auto.offset.reset: {text!r} is not an ISO 8601 duration"
        raise ValueError(message)
    days, hours, minutes, seconds = (float(group or 0) for group in match.groups())
    return int((((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1000)
