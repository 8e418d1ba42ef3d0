"""`mm2 offsets`: the source offsets in an offsets topic, the removal of obsolete ones, and the adoption of others."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, TextIO

from mm2.cli.common.flow import EXIT_NOT_WELL, EXIT_WELL, CommandError, add_config, answering, pair_of, read_config
from mm2.cli.common.output import add_output, write_document
from mm2.cli.common.tables import number, table
from mm2.cli.common.verbs import examples
from mm2.config.configdef import ConfigException
from mm2.config.files.properties import load_properties
from mm2.config.keys.mirror_keys import SOURCE_CONNECTOR
from mm2.config.mirrormaker import MirrorMakerConfig
from mm2.config.providers import ConfigTransformer
from mm2.connect.stores.config_state import TargetState
from mm2.connect.stores.offset_survey import KeptOffset, configured_connectors, kept_offsets, matching, remove
from mm2.evidence import utc_time
from mm2.kafka.admin import Admin
from mm2.kafka.client.cluster import Cluster
from mm2.kafka.error_codes import ErrorCode
from mm2.kafka.errors import BrokerFailure, value_of
from mm2.kafka.settings.client_settings import ClientSettings
from mm2.mirror.process.adoption import Adopter, AdoptionRefused, Origin

_AGE: Final = re.compile(r"(\d+)\s*([smhdw])")
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_READ_S: Final = 300.0
_WRITE_S: Final = 60.0


@dataclass(frozen=True)
class OffsetsLocation:
    """An offsets topic and the config topic of its workers; ``props`` are their cluster's and contain secrets."""

    topic: str
    config_topic: str
    props: Mapping[str, str]

    @classmethod
    def of(cls, file: Path, flow: str | None, topic: str | None) -> OffsetsLocation:
        """The topics of a worker's properties, or of one flow of MirrorMaker's. Raises CommandError or ConfigException."""
        props = load_properties(file)
        if flow is None:
            if "clusters" in props:
                raise CommandError(f"{file} is MirrorMaker's: name one of its flows, in quotes: 'A->B'.")
            worker = ConfigTransformer.from_props(props).transform(props)
        else:
            config = MirrorMakerConfig(props)
            worker = config.worker_config(pair_of(config, file, flow))
        for key in ("bootstrap.servers", "offset.storage.topic", "config.storage.topic"):
            if not worker.get(key):
                raise ConfigException(f'Missing required configuration "{key}".')
        return cls(topic or worker["offset.storage.topic"], worker["config.storage.topic"], worker)

    @contextmanager
    def cluster(self) -> Iterator[Cluster]:
        """A client, after the cluster has answered and has the topic. Raises CommandError or KafkaFailure."""
        cluster = Cluster(ClientSettings.from_props(self.props, client_id="mm2-cli-offsets"), name="of the workers")
        with answering(cluster):
            self._require(cluster, self.topic)
            yield cluster

    def configured(self, cluster: Cluster) -> dict[str, TargetState]:
        """The connectors in the workers' config topic. Raises CommandError or KafkaFailure."""
        self._require(cluster, self.config_topic)
        return configured_connectors(cluster, self.config_topic, _READ_S)

    def _require(self, cluster: Cluster, topic: str) -> None:
        # A reader would wait for a missing topic, since it might be new.
        found = Admin(cluster).describe_topics([topic])[topic]
        if isinstance(found, BrokerFailure) and found.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise CommandError(f"There is no topic {topic} at {self.props['bootstrap.servers']}.")
        value_of(found)


def before(text: str | None, now_ms: int) -> int | None:
    """Parse ``30d``, ``12h``, ``90m`` ago, or an ISO 8601 time (default UTC), to ms. Raises CommandError."""
    if text is None:
        return None
    match = _AGE.fullmatch(text.strip())
    if match is not None:
        return now_ms - int(match[1]) * _SECONDS[match[2]] * 1000
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        sentence = f"{text!r} is not an age; write for instance 30d, 12h, 90m, or a time such as 2026-01-31T12:00."
        raise CommandError(sentence) from None
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


def fields(given: Sequence[str]) -> dict[str, str]:
    """Parse ``topic=orders`` to name and value. Raises CommandError."""
    found = {}
    for text in given:
        name, sign, value = text.partition("=")
        if not sign or not name:
            raise CommandError(f"{text!r} is not a field of a source partition; write for instance topic=orders.")
        found[name] = value
    return found


def add(verbs: Any) -> None:
    """Declare the command and its arguments."""
    parser = verbs.add_parser(
        "offsets",
        help="list, delete and adopt source offsets",
        description="Lists the source offsets in a worker's offsets topic, deletes unused ones, and adopts those of another "
        "deployment, such as Strimzi's.",
    )
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    listing = actions.add_parser(
        "list",
        help="every key with its offset and age",
        description="Every key that has an offset, with its age and whether its connector is configured. Exit code: 0 "
        "done, 2 the command failed.",
        epilog=examples(
            ("of a flow", "mm2 offsets list mm2.properties 'A->B'"),
            ("of a Connect worker, one connector", "mm2 offsets list worker.properties --connector files"),
        ),
    )
    _add_choice(listing)
    listing.set_defaults(run=run_list)
    deleting = actions.add_parser(
        "delete",
        help="remove keys of a connector, or older than an age",
        description="Deletes matching keys by writing tombstones, reads the result back and prints the deleted keys. Keys"
        " of a connector that is configured and not stopped are kept, because it would start from the "
        "beginning. Exit code: 0 all matching keys are deleted, 1 some are kept, 2 the command failed.",
        epilog=examples(
            (
                "not written for a month: preview",
                "mm2 offsets delete mm2.properties 'A->B' --older-than 30d --dry-run",
            ),
            ("of a deleted topic", "mm2 offsets delete mm2.properties 'A->B' --where topic=orders"),
        ),
    )
    _add_choice(deleting)
    deleting.add_argument(
        "--dry-run", action="store_true", help="show the keys that would be deleted, and delete nothing"
    )
    deleting.add_argument("--force", action="store_true", help="also of connectors that are configured and not stopped")
    deleting.set_defaults(run=run_delete)
    _add_adopt(actions)


def _add_adopt(actions: Any) -> None:
    adopting = actions.add_parser(
        "adopt",
        help="continue where another deployment of MirrorMaker 2 has stopped",
        description="Writes the positions of a source connector that ran on other Kafka Connect workers for this flow, and reads "
        "them back, so that the flow copies nothing again. The defaults are the names of Strimzi's KafkaMirrorMaker2. Its "
        "workers and those of the flow have to be stopped. Existing positions are never changed: if one differs, as before a second "
        "migration, delete those of the flow first with mm2 offsets delete. Exit code: 0 done and verified, 2 nothing was changed, for "
        "the reason shown.",
        epilog=examples(
            ("of Strimzi: preview", "mm2 offsets adopt mm2.properties 'A->B' --dry-run"),
            (
                "of other Connect workers",
                "mm2 offsets adopt mm2.properties 'A->B' --from-group connect --from-topic connect-offsets --from-connector mirror",
            ),
        ),
    )
    add_config(adopting)
    adopting.add_argument("flow", metavar="'A->B'", help="the flow, in quotes because shells treat > as a redirection")
    adopting.add_argument(
        "--from-topic", metavar="T", help="their offsets topic (default: mirrormaker2-cluster-offsets)"
    )
    adopting.add_argument("--from-group", metavar="G", help="group.id of their workers (default: mirrormaker2-cluster)")
    adopting.add_argument(
        "--from-connector", metavar="NAME", help="the source connector (default: A->B.MirrorSourceConnector)"
    )
    adopting.add_argument("--dry-run", action="store_true", help="show the positions, and write nothing")
    add_output(adopting)
    adopting.set_defaults(run=run_adopt)


def _add_choice(parser: Any) -> None:
    add_config(parser, metavar="FILE", text="properties file of a Connect worker, or MirrorMaker's")
    parser.add_argument("flow", metavar="'A->B'", nargs="?", help="the flow, where FILE is MirrorMaker's")
    parser.add_argument("--topic", metavar="T", help="another offsets topic (offsets.storage.topic of a connector)")
    parser.add_argument(
        "--connector", metavar="NAME", action="append", default=[], help="only of this connector; repeatable"
    )
    parser.add_argument(
        "--where",
        metavar="FIELD=VALUE",
        action="append",
        default=[],
        help="only of source partitions with this field; repeatable",
    )
    parser.add_argument(
        "--older-than", metavar="AGE", help="only keys last written before this age or time: 30d, 12h, 2026-01-31"
    )
    add_output(parser)


def run_list(options: Any) -> int:
    """Run the command; returns the exit code. Raises CommandError, ConfigException or KafkaFailure."""
    place = OffsetsLocation.of(options.config, options.flow, options.topic)
    with place.cluster() as cluster:
        kept = kept_offsets(cluster, place.topic, _READ_S)
        configured = place.configured(cluster)
    chosen = _chosen(options, kept)
    if not (options.connector or options.where or options.older_than):
        chosen = kept  # including entries that are not Connect's
    if options.json:
        write_document(options, {"topic": place.topic, "offsets": [_json(one, configured) for one in chosen]})
        return EXIT_WELL
    _write(sys.stdout, chosen, configured)
    sys.stdout.write(f"{number(len(chosen))} of {number(len(kept))} keys of topic {place.topic}\n")
    return EXIT_WELL


def run_delete(options: Any) -> int:
    """Run the command; returns the exit code. Raises CommandError, ConfigException or KafkaFailure."""
    if not (options.connector or options.where or options.older_than):
        raise CommandError("Select the offsets to delete with --connector, --where or --older-than.")
    place = OffsetsLocation.of(options.config, options.flow, options.topic)
    with place.cluster() as cluster:
        kept = kept_offsets(cluster, place.topic, _READ_S)
        configured = place.configured(cluster)
        chosen = _chosen(options, kept)
        spared = [] if options.force else [one for one in chosen if _in_use(one, configured)]
        gone = [one for one in chosen if one not in spared]
        if gone and not options.dry_run:
            remove(cluster, place.topic, gone, _WRITE_S)
            left = {(one.key, one.log_partition) for one in kept_offsets(cluster, place.topic, _READ_S)}
            back = [one for one in gone if (one.key, one.log_partition) in left]
            if back:
                raise CommandError(f"{number(len(back))} of {number(len(gone))} keys were written again meanwhile.")
    done = "would be removed" if options.dry_run else "removed"
    if options.json:
        rows = {name: [_json(one, configured) for one in some] for name, some in (("removed", gone), ("kept", spared))}
        write_document(options, {"topic": place.topic, "dry_run": options.dry_run, **rows})
    else:
        _write(sys.stdout, gone, configured)
        proof = "" if options.dry_run or not gone else ", which was checked by reading the topic again"
        sys.stdout.write(f"{number(len(gone))} of {number(len(kept))} keys of topic {place.topic} {done}{proof}\n")
        if spared:
            names = ", ".join(sorted({one.connector or "" for one in spared}))
            sys.stdout.write(
                f"{number(len(spared))} kept: their connectors ({names}) are configured and not stopped; stop them, or use "
                "--force\n"
            )
    return EXIT_NOT_WELL if spared else EXIT_WELL


def run_adopt(options: Any) -> int:
    """Run the command; returns the exit code. Raises CommandError, ConfigException, ConnectError or KafkaFailure."""
    config = read_config(options.config)
    pair = pair_of(config, options.config, options.flow)
    usual = Origin.of_strimzi(pair)
    origin = Origin(
        options.from_group or usual.group, options.from_topic or usual.topic, options.from_connector or usual.connector
    )
    worker = config.worker_config(pair)
    props = ConfigTransformer.from_props(config.originals).transform(config.connector_config(pair, SOURCE_CONNECTOR))
    cluster = Cluster(ClientSettings.from_props(worker, client_id="mm2-cli-offsets"), name=pair.target)
    with answering(cluster):
        try:
            adoption = Adopter(cluster, pair, worker, props).adopt(origin, dry_run=options.dry_run)
        except AdoptionRefused as refused:
            raise CommandError(str(refused)) from refused
    found = ((adoption.new, True), (adoption.known, False))
    rows = sorted((tp, offset, is_new) for positions, is_new in found for tp, offset in positions.items())
    if options.json:
        positions = [
            {"topic": tp.topic, "partition": tp.partition, "offset": offset, "adopted": is_new}
            for tp, offset, is_new in rows
        ]
        document = {"flow": str(pair), "topic": adoption.topic, "from": asdict(origin), "dry_run": options.dry_run}
        write_document(options, {**document, "missing_topics": list(adoption.missing), "positions": positions})
        return EXIT_WELL
    cells = [(str(tp), number(offset), "" if is_new else "there already") for tp, offset, is_new in rows]
    table(sys.stdout, ("PARTITION", "LAST COPIED", ""), cells)
    done = "would be adopted" if options.dry_run else "adopted and read back"
    sys.stdout.write(
        f"{number(len(adoption.new))} positions of {origin.connector} in {origin.topic} {done} in {adoption.topic}\n"
    )
    if adoption.missing:
        sys.stdout.write(f"{number(len(adoption.missing))} remote topics do not exist, first {adoption.missing[0]}\n")
    return EXIT_WELL


def _chosen(options: Any, kept: Sequence[KeptOffset]) -> list[KeptOffset]:
    return matching(
        kept,
        connectors=set(options.connector),
        fields=fields(options.where),
        before_ms=before(options.older_than, int(time.time() * 1000)),
    )


def _in_use(one: KeptOffset, configured: Mapping[str, TargetState]) -> bool:
    return configured.get(one.connector or "", TargetState.STOPPED) is not TargetState.STOPPED


def _json(one: KeptOffset, configured: Mapping[str, TargetState]) -> dict[str, Any]:
    state = configured.get(one.connector or "")
    return {
        "connector": one.connector,
        "configured": None if state is None else state.value,
        "partition": one.partition,
        "offset": one.offset,
        "key": one.key.decode("utf-8", "backslashreplace"),
        "written_ms": one.written_ms,
        "log": {"partition": one.log_partition, "offset": one.log_offset},
    }


def _write(out: TextIO, kept: Sequence[KeptOffset], configured: Mapping[str, TargetState]) -> None:
    if not kept:
        return
    rows = []
    for one in kept:
        state = configured.get(one.connector or "")
        name = "not Connect's" if one.connector is None else one.connector
        partition = one.key.decode("utf-8", "backslashreplace") if one.partition is None else _compact(one.partition)
        where = f"{one.log_partition}@{one.log_offset}"
        rows.append(
            (name, partition, _compact(one.offset), state.value if state else "no", _time(one.written_ms), where)
        )
    table(out, ("connector", "source partition", "offset", "configured", "written", "record"), rows, left=5)


def _compact(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _time(at_ms: int) -> str:
    return utc_time(at_ms) if at_ms >= 0 else "-"
