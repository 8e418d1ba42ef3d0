"""The changes that a new version of the file requires."""

from __future__ import annotations

from pathlib import Path

import pytest

from mm2.config.configdef import ConfigException
from mm2.config.mirrormaker import MirrorMakerConfig, SourceAndTarget
from mm2.mirror.common.plugins import connect_plugins
from mm2.mirror.process.plans import Changes, FlowPlan, plan_flows

AB, BA, CB = SourceAndTarget("A", "B"), SourceAndTarget("B", "A"), SourceAndTarget("C", "B")
BASE = {
    "clusters": "A, B",
    "A.bootstrap.servers": "127.0.0.1:1",
    "B.bootstrap.servers": "127.0.0.1:2",
    "A->B.enabled": "true",
}
SOURCE, CHECKPOINT, HEARTBEAT = (f"Mirror{name}Connector" for name in ("Source", "Checkpoint", "Heartbeat"))


def plans(**props: str) -> dict[SourceAndTarget, FlowPlan]:
    given = {key.replace("__", "."): value for key, value in props.items()}
    return plan_flows(MirrorMakerConfig({**BASE, **given}), None, connect_plugins())


def test_an_unchanged_file_changes_nothing() -> None:
    changes = Changes.between(plans(), plans())
    assert (changes.added, changes.removed, changes.restarted) == ((), (), ())
    assert changes.to_json()["reconfigured"] == {}


def test_flows_are_added_and_removed() -> None:
    more = {"clusters": "A, B, C", "C__bootstrap__servers": "127.0.0.1:3", "emit__heartbeats__enabled": "false"}
    grown = plans(**more, **{"C->B.enabled": "true"})
    changes = Changes.between(plans(), grown)
    assert (changes.added, changes.removed) == ((CB,), (BA,))
    assert (Changes.between(grown, plans()).added, Changes.between(grown, plans()).removed) == ((BA,), (CB,))


def test_worker_keys_restart_only_their_flow() -> None:
    changes = Changes.between(plans(), plans(B__offset__flush__interval__ms="5000"))
    assert changes.restarted == (AB,)
    # The other flow's connectors get it as a setting of their cluster that they do not read.
    assert BA not in changes.restarted


def test_connector_keys_are_written_to_the_connectors_that_read_them() -> None:
    changes = Changes.between(plans(), plans(**{"A->B.refresh.topics.interval.seconds": "1"}))
    assert (changes.restarted, changes.reconfigured[AB]) == ((), (SOURCE, HEARTBEAT, CHECKPOINT))
    assert changes.reconfigured[BA] == ()


def test_a_reference_with_another_value_is_a_change(tmp_path: Path) -> None:
    given = {
        "config__providers": "f",
        "config__providers__f__class": "org.apache.kafka.common.config.provider.FileConfigProvider",
    }
    path = tmp_path / "secrets"
    reference = {"A->B.topics": f"${{f:{path}:topics}}"}

    def seen(topics: str) -> dict[SourceAndTarget, FlowPlan]:
        path.write_text(f"topics={topics}\n")
        return plans(**given, **reference)

    changes = Changes.between(seen("a.*"), seen("b.*"))
    assert changes.reconfigured[AB] == ()
    assert changes.changed_values[AB] == (CHECKPOINT, HEARTBEAT, SOURCE)
    assert "b.*" not in repr(seen("b.*"))


@pytest.mark.parametrize("wrong", [{"A->B.topics": "("}, {"A->B.enabled": "false", "emit.heartbeats.enabled": "false"}])
def test_an_invalid_file_is_rejected_before_any_change(wrong: dict[str, str]) -> None:
    with pytest.raises(ConfigException):
        plans(**wrong)


def test_an_exception_of_a_user_class_is_reported_with_its_name() -> None:
    own = "tests.integration.test_mm2_behaviours.policies.ShortNames"
    with pytest.raises(
        ConfigException, match=f"{own} of configuration topic.filter.class cannot be configured: KeyError"
    ):
        plans(**{"A->B.topic.filter.class": own})


def test_an_error_of_a_connector_shows_the_reference(tmp_path: Path) -> None:
    (tmp_path / "values").write_text("url=ftp://s3cr3t-host/x\nregex=(s3cr3t-name\n")
    given = {
        "config__providers": "f",
        "config__providers__f__class": "org.apache.kafka.common.config.provider.FileConfigProvider",
    }
    for key, value in (("topics", "regex"), ("groups", "regex"), ("key.converter", "url")):
        reference = f"${{f:{tmp_path}/values:{value}}}"
        with pytest.raises(ConfigException) as caught:
            plans(**given, **{f"A->B.{key}": reference})
        assert "s3cr3t" not in str(caught.value)
        assert reference in str(caught.value)


TWO_SOURCES = {
    "clusters": "A, B, C",
    "C.bootstrap.servers": "127.0.0.1:3",
    "C->B.enabled": "true",
    "emit.heartbeats.enabled": "false",
    "A->B.preserve.offsets": "true",
}
IDENTITY = {"replication.policy.class": "org.apache.kafka.connect.mirror.IdentityReplicationPolicy"}


@pytest.mark.parametrize(
    ("given", "shared"),
    [
        ({**IDENTITY, "A->B.topics": "orders, a.*", "C->B.topics": "o.*"}, "the topic orders on B"),
        ({**IDENTITY, "A->B.topics": "o.*", "C->B.topics": "orders"}, "the topic orders on B"),
        ({**IDENTITY}, "topics of the same names on B"),
        ({**IDENTITY, "A->B.preserve.offsets.topics": "orders"}, "the topic orders on B"),
        (
            {
                "C->B.transforms": "r",
                "C->B.transforms.r.type": "org.apache.kafka.connect.transforms.RegexRouter",
                "C->B.transforms.r.regex": "C\\.(.*)",
                "C->B.transforms.r.replacement": "A.$1",
                "A->B.topics": "orders",
                "C->B.topics": "orders",
            },
            "the topic A.orders on B",
        ),
    ],
)
def test_two_flows_into_one_topic_with_preserved_offsets_are_refused(given: dict[str, str], shared: str) -> None:
    with pytest.raises(ConfigException, match=f"preserve.offsets: A->B and C->B copy to {shared}"):
        plans(**TWO_SOURCES, **given)
    plans(**{**TWO_SOURCES, **given, "A->B.preserve.offsets": "false"})


@pytest.mark.parametrize("preserved", [".*", "people"])
def test_two_topics_into_one_with_preserved_offsets_are_refused(preserved: str) -> None:
    given = {
        "A->B.topics": "people, orders, o.*",
        "A->B.transforms": "r",
        "A->B.transforms.r.type": "RegexRouter",
        "A->B.transforms.r.regex": ".*",
        "A->B.transforms.r.replacement": "all",
        "A->B.preserve.offsets.topics": preserved,
    }
    with pytest.raises(
        ConfigException, match="orders and people have the same remote topic all, which can have the offsets of one"
    ):
        plans(**given, **{"A->B.preserve.offsets": "true"})
    plans(**given, **{"A->B.preserve.offsets": "false"})


@pytest.mark.parametrize(
    "given",
    [
        {},
        {**IDENTITY, "A->B.topics": "orders", "C->B.topics": "payments, p.*"},
        {
            **IDENTITY,
            "A->B.topics": "orders, shared",
            "C->B.topics": "shared",
            "A->B.preserve.offsets.topics": "orders",
        },
        {**IDENTITY, "C->B.enabled": "false"},
    ],
)
def test_flows_into_different_topics_preserve_offsets(given: dict[str, str]) -> None:
    assert AB in plans(**{**TWO_SOURCES, **given})
