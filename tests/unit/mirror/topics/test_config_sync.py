import pytest

from mm2.kafka.structs import AlterOp, AlterOpType, ConfigEntry, ConfigSource
from mm2.mirror.filters import DefaultConfigPropertyFilter
from mm2.mirror.topics.config_sync import ConfigDifference, ConfigSync

TOPIC, DEFAULT = ConfigSource.DYNAMIC_TOPIC_CONFIG, ConfigSource.DEFAULT_CONFIG


def entry(
    name: str,
    value: str | None,
    source: ConfigSource = TOPIC,
    *,
    read_only: bool = False,
    sensitive: bool = False,
) -> ConfigEntry:
    return ConfigEntry(name, value, source, source == DEFAULT, read_only, sensitive)


def described(*entries: ConfigEntry) -> dict[str, ConfigEntry]:
    return {made.name: made for made in entries}


def rules(**props: str) -> ConfigSync:
    property_filter = DefaultConfigPropertyFilter()
    property_filter.configure({key.replace("_", "."): value for key, value in props.items()})
    return ConfigSync(property_filter)


SOURCE = described(
    entry("retention.bytes", "1000"),
    entry("cleanup.policy", "compact", ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG),
    entry("segment.bytes", "1073741824", DEFAULT),
    entry("max.message.bytes", "5", ConfigSource.STATIC_BROKER_CONFIG),
    entry("min.insync.replicas", "2"),
    entry("some.secret", None, sensitive=True),
    entry("fixed", "1", read_only=True),
)


def test_creation_copies_set_values_without_defaults_and_excluded_ones() -> None:
    assert rules().for_creation(SOURCE) == {"retention.bytes": "1000", "cleanup.policy": "compact"}


def test_creation_copies_defaults_of_the_source_when_configured() -> None:
    created = rules(use_defaults_from="source").for_creation(SOURCE)
    assert created == {"retention.bytes": "1000", "cleanup.policy": "compact", "segment.bytes": "1073741824"}


def test_only_differences_are_written() -> None:
    target = described(
        entry("retention.bytes", "1000"),
        entry("cleanup.policy", "delete", DEFAULT),
        entry("segment.bytes", "1073741824", DEFAULT),
        entry("min.insync.replicas", "1", DEFAULT),
    )
    assert rules().changes(SOURCE, target) == [AlterOp("cleanup.policy", "compact", AlterOpType.SET)]


def test_an_override_of_what_is_default_on_the_source_is_removed() -> None:
    target = described(entry("segment.bytes", "1048576"))
    assert rules().changes(SOURCE, target) == [AlterOp("segment.bytes", None, AlterOpType.DELETE)]


def test_with_defaults_from_the_source_the_override_gets_the_sources_value() -> None:
    target = described(entry("segment.bytes", "1048576"))
    changes = rules(use_defaults_from="source").changes(SOURCE, target)
    assert changes == [AlterOp("segment.bytes", "1073741824", AlterOpType.SET)]


@pytest.mark.parametrize("name", ["min.insync.replicas", "max.message.bytes", "fixed", "some.secret"])
def test_configs_that_are_not_copied_are_kept_on_the_target(name: str) -> None:
    assert rules().changes(SOURCE, described(entry(name, "77"))) == []


def test_a_property_that_the_target_does_not_know_is_left_out() -> None:
    assert rules().changes(SOURCE, {}) == []
    assert rules().unknown(SOURCE, {}) == ["retention.bytes", "cleanup.policy"], "and named, unless it is a default"
    assert rules().unknown(SOURCE, SOURCE) == []


def test_differences_are_listed_with_those_that_the_next_sync_ends() -> None:
    source = described(
        entry("retention.ms", "1"), entry("min.insync.replicas", "2"), entry("equal", "x"), entry("new", "y")
    )
    source |= described(entry("password", None, sensitive=True))
    target = described(
        entry("retention.ms", "2"), entry("min.insync.replicas", "1"), entry("equal", "x"), entry("old", "z")
    )
    target |= described(entry("password", "shown by nothing"))
    wanted = [
        ConfigDifference("min.insync.replicas", "2", "1", is_synced=False),
        ConfigDifference("new", "y", None, is_synced=False),
        ConfigDifference("old", None, "z", is_synced=False),
        ConfigDifference("retention.ms", "1", "2", is_synced=True),
    ]
    assert rules().differences(source, target, is_enabled=True) == wanted
    assert not any(one.is_synced for one in rules().differences(source, target, is_enabled=False))
    assert rules().differences(source, source, is_enabled=True) == []
