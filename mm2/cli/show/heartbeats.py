"""`mm2 heartbeats`: the replication latency to each cluster, by flow and hop, measured by heartbeats."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from mm2.cli.common.flow import EXIT_ERROR, EXIT_NOT_WELL, EXIT_WELL, CommandError, add_config, answering, read_config
from mm2.cli.common.output import add_output, write_document
from mm2.cli.common.tables import table
from mm2.cli.common.verbs import examples, seconds
from mm2.cli.show.client import client_props
from mm2.codec import encode
from mm2.config.configdef import ConfigException
from mm2.config.keys.mirror_keys import HEARTBEAT_CONNECTOR, SOURCE_CONNECTOR, is_job_on
from mm2.config.mirrormaker import MirrorMakerConfig
from mm2.evidence import FRESH
from mm2.kafka.client.cluster import Cluster
from mm2.kafka.errors import KafkaFailure, failures_in
from mm2.kafka.settings.client_settings import ClientSettings
from mm2.mirror.client import Freshness, FreshnessWatch, MirrorClient, ReplicationPolicy

#: The worker has written a heartbeat at its target, and its source does not answer.
UNPROVEN: Final = "unproven"


@dataclass(frozen=True)
class ExpectedHeartbeats:
    """The flows (``A->B``) that emit heartbeats by the file, those that copy them, and those that are enabled.

    A flow that is not enabled emits heartbeats by default, if a process for its target runs. Where only one direction is used,
    there is none, so its heartbeats may be missing.
    """

    heartbeats: frozenset[str]
    copying: frozenset[str]
    enabled: frozenset[str]

    @classmethod
    def of(cls, config: MirrorMakerConfig) -> ExpectedHeartbeats:
        """The expected flows of a configuration."""
        enabled = config.replicating_pairs()
        beats, copies = set(), set()
        for pair in config.cluster_pairs():
            source = config.connector_config(pair, SOURCE_CONNECTOR)
            if is_job_on(config.connector_config(pair, HEARTBEAT_CONNECTOR), "emit.heartbeats"):
                beats.add(str(pair))
            if pair in enabled and source.get("heartbeats.replication.enabled", "true").strip().lower() == "true":
                copies.add(str(pair))
        return cls(frozenset(beats), frozenset(copies), frozenset(map(str, enabled)))

    def counts(self, alias: str, one: Freshness) -> bool:
        """Whether the heartbeat should be fresh: its flow is enabled, and so are all hops to the cluster ``alias``."""
        way = [alias, *one.route]
        return one.flow in self.heartbeats and all(
            f"{source}->{target}" in self.copying for target, source in itertools.pairwise(way)
        )

    def missing(self, alias: str, policy: ReplicationPolicy, seen: Sequence[Freshness]) -> list[tuple[str, str]]:
        """(topic, flow) of heartbeats that should arrive at the cluster over at most one hop, and did not for a day."""
        here = policy.heartbeats_topic()
        required = self.heartbeats & self.enabled
        wanted = {(here, flow) for flow in required if flow.endswith(f"->{alias}")}
        for flow in self.copying:
            source, _, target = flow.partition("->")
            if target == alias:
                remote = policy.format_remote_topic(source, here)
                wanted |= {(remote, beat) for beat in required if beat.endswith(f"->{source}")}
        return sorted(wanted - {(one.topic, one.flow) for one in seen})


def add(verbs: Any) -> None:
    """Declare the command and its arguments."""
    parser = verbs.add_parser(
        "heartbeats",
        help="age of heartbeats, by flow and hop",
        description="The newest heartbeat of every flow in every heartbeats topic, and its age: in B.A.heartbeats on C "
        "that is the age of records that come from A through B. Clock differences between machines are "
        "included. A flow without a heartbeat for a day is silent. The heartbeats topic of a cluster has those that "
        "the workers write there: they show nothing about a source that does not answer. Exit code: 0 all flows of the file have "
        "fresh heartbeats, 1 one has not, 2 a cluster could not be read; the others are shown.",
        epilog=examples(
            ("on all clusters of the file", "mm2 heartbeats mm2.properties"),
            ("heartbeats on B may be ten seconds old", "mm2 heartbeats mm2.properties B --max-age 10"),
        ),
    )
    add_config(parser)
    parser.add_argument(
        "clusters", metavar="CLUSTER", nargs="*", help="the cluster to read from (default: all clusters)"
    )
    parser.add_argument(
        "--max-age", metavar="SECONDS", type=seconds, default=60.0, help="older ones are not fresh (default: 60)"
    )
    add_output(parser)
    parser.set_defaults(run=run)


def run(options: Any) -> int:
    """Run the command; returns the exit code. Raises CommandError or ConfigException."""
    config = read_config(options.config)
    if unknown := config.unknown_clusters(options.clusters):
        known = ", ".join(config.clusters) or "none"
        raise CommandError(f"{options.config} has no cluster {unknown[0]}; its clusters are {known}.")
    expected = ExpectedHeartbeats.of(config)

    def ask(alias: str) -> list[dict[str, Any]] | KafkaFailure:
        try:
            return _read(client_props(options.config, alias), alias, expected, options.max_age)
        except KafkaFailure as failure:
            return failure

    # One of the clusters may be unreachable; the others are reported nevertheless.
    aliases = list(dict.fromkeys(options.clusters or config.clusters))
    with ThreadPoolExecutor(max(1, len(aliases)), thread_name_prefix="heartbeats") as pool:
        results = dict(zip(aliases, pool.map(ask, aliases), strict=True))
        silent = set(failures_in(results))
        others = [alias for alias in config.clusters if alias not in results]
        asked = zip(others, pool.map(partial(_answers, options.config), others), strict=True)
        silent |= {alias for alias, is_up in asked if not is_up}
    answers = {alias: rows for alias, rows in results.items() if not isinstance(rows, KafkaFailure)}
    for row in itertools.chain.from_iterable(answers.values()):
        if row["verdict"] == "fresh" and row["hops"] == 0 and row["source"] in silent:
            row["verdict"] = UNPROVEN
    errors = {alias: str(failure) for alias, failure in failures_in(results).items()}
    if options.json:
        write_document(options, {"clusters": answers, "troubles": errors}, ascii_only=True)
    else:
        cells = [cells_of(alias, row) for alias, rows in answers.items() for row in rows]
        table(sys.stdout, ("CLUSTER", "TOPIC", "FLOW", "HOPS", "AGE", "VERDICT"), cells, left=3)
    sys.stderr.writelines(f"mm2: cluster {alias}: {error}\n" for alias, error in errors.items())
    if errors:
        return EXIT_ERROR
    well = all(row["verdict"] in ("fresh", "not in the file") for rows in answers.values() for row in rows)
    return EXIT_WELL if well else EXIT_NOT_WELL


def _answers(file: Path, alias: str) -> bool:
    """Whether a cluster answers that was not asked for its heartbeats."""
    try:
        settings = ClientSettings.from_props(client_props(file, alias), client_id="mm2-cli-heartbeats")
        with answering(Cluster(settings, name=alias)):
            return True
    except (CommandError, ConfigException, KafkaFailure):
        return False


def _read(props: Mapping[str, str], alias: str, expected: ExpectedHeartbeats, max_age_s: float) -> list[dict[str, Any]]:
    cluster = Cluster(ClientSettings.from_props(props, client_id="mm2-cli-heartbeats"), name=alias)
    with answering(cluster):
        pass  # the client below retries an unreachable cluster until its retries are exhausted
    with MirrorClient(props) as client:
        seen = FreshnessWatch(client).look()
        policy = client.replication_policy()
    rows = []
    for one in seen:
        verdict = "fresh" if one.age_ms <= max_age_s * 1000 else "old"
        rows.append({**encode(one), "verdict": verdict if expected.counts(alias, one) else "not in the file"})
    for topic, flow in expected.missing(alias, policy, seen):
        source, _, target = flow.partition("->")
        rows.append({"topic": topic, "source": source, "target": target, "verdict": "silent"})
    return rows


def cells_of(alias: str, row: Mapping[str, Any]) -> tuple[str, ...]:
    """The row of a heartbeat, for people."""
    age = "-" if "age_ms" not in row else f"{row['age_ms'] / 1000:,.1f} s"
    verdict = row["verdict"]
    if verdict == UNPROVEN:
        verdict = FRESH(is_known=False, source=row["source"])
    return (alias, row["topic"], f"{row['source']}->{row['target']}", str(row.get("hops", "-")), age, verdict)
