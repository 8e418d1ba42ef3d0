"""The matrix of Kafka versions in docs/reference/kafka-versions.md: `python -m tests.systems.version_matrix` prints it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from mm2.sandbox.errors import SandboxError
from mm2.sandbox.jars import fetch
from tests.support.java import CONNECT_VERSION, MIRROR_VERSION, connect_classpath
from tests.support.versions import VERSIONS, KafkaVersion

#: Source and target. Each version is a source once, and each since 2.8 a target.
PAIRS: Final = (
    ("2.1.1", "4.4.0"),
    ("2.4.1", "2.8.2"),
    ("2.8.2", "4.2.2"),
    ("3.3.2", "4.1.2"),
    ("3.9.2", "4.0.2"),
    ("4.0.2", "3.9.2"),
    ("4.1.2", "3.3.2"),
    ("4.2.2", "4.3.1"),
    ("4.3.1", "4.4.0"),
    ("4.4.0", "2.8.2"),
)
ALWAYS: Final = frozenset({PAIRS[0]})
"""The oldest source and the newest target, which bin/test runs."""


def _all(_: KafkaVersion) -> bool:
    return True


@dataclass(frozen=True)
class Feature:
    """A row: the test of a feature, and which sources have it."""

    text: str
    test: str
    source: Callable[[KafkaVersion], bool] = _all

    def cell(self, version: KafkaVersion) -> str:
        """`S` tested as source, `T` tested as target, `-` neither."""
        pairs = [(here, there) for here, there in PAIRS if self.source(KafkaVersion.of(here))]
        sides = "".join(
            letter for letter, side in zip("ST", zip(*pairs, strict=True), strict=True) if str(version) in side
        )
        return sides or "-"


FEATURES: Final = (
    Feature(
        "records: every codec, headers, tombstones, empty and missing keys and values, 600 KB, the years 1970 and 3000",
        "test_records_of_every_codec_are_equal",
    ),
    Feature("records with LogAppendTime", "test_records_with_log_append_time_keep_their_timestamps"),
    Feature(
        "topics in the message formats 0 and 1 (removed in 3.0, KIP-724)",
        "test_records_in_old_message_formats_are_equal",
        source=lambda version: not version.since(3, 0),
    ),
    Feature("transactions, committed and aborted", "test_only_committed_transactions_are_copied"),
    Feature(
        "compaction holes, and a group whose offset is in one",
        "test_compacted_records_are_skipped_and_a_group_in_a_hole_continues_behind_it",
    ),
    Feature("topic creation, config sync, new partitions", "test_topics_configs_and_new_partitions_follow_the_source"),
    Feature("ACL sync", "test_acls_of_a_topic_are_copied_except_write"),
    Feature(
        "classic groups: checkpoints, synced offsets, `RemoteClusterUtils`",
        "test_offsets_of_groups_are_checkpointed_and_committed",
    ),
    Feature(
        "groups of the consumer protocol (KIP-848, 4.0), as classic ones",
        "test_offsets_of_groups_are_checkpointed_and_committed",
        source=lambda version: version.since(4, 0),
    ),
    Feature(
        "share groups (KIP-932, 4.2), as classic ones; an older target gets checkpoints only",
        "test_offsets_of_groups_are_checkpointed_and_committed",
        source=lambda version: version.since(4, 2),
    ),
    Feature("a source topic deleted and recreated", "test_a_topic_that_is_created_again_is_copied_from_its_start"),
    Feature(
        "`mm2 plan`, `gaps`, `status`, `groups`",
        "test_commands_report_the_flow_and_every_offset_that_is_not_on_the_target",
    ),
    Feature("`mm2 verify`", "test_verify_finds_no_difference"),
    Feature("kill -9 of the process under load", "test_a_kill_under_load_loses_and_doubles_nothing"),
    Feature("kill -9 in exactly-once mode", "test_exactly_once_mode_loses_and_doubles_nothing_when_it_is_killed"),
)


def table() -> str:
    """The matrix as Markdown: a row for the features that were tested with the same versions."""
    features: dict[tuple[str, ...], list[str]] = {}
    for feature in FEATURES:
        features.setdefault(tuple(feature.cell(version) for version in VERSIONS), []).append(feature.text)
    head = ["feature", *map(str, VERSIONS)]
    lines = [head, ["---"] * len(head), *(["; ".join(texts), *cells] for cells, texts in features.items())]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def main(arguments: Sequence[str]) -> None:
    """Print the table, or with `--fetch` download the jars of the versions that bin/test runs, with `--all` of all.

    Also those of the newest Connect, and with `--all` of the newest MirrorMaker, of Java.
    """
    if "--fetch" not in arguments:
        sys.stdout.write(table())
        return
    for version in sorted({version for pair in (PAIRS if "--all" in arguments else ALWAYS) for version in pair}):
        fetch(KafkaVersion.of(version).jar_set)
    for version in (CONNECT_VERSION, MIRROR_VERSION) if "--all" in arguments else (CONNECT_VERSION,):
        connect_classpath(version)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except SandboxError as error:
        sys.exit(str(error))
