import pytest

from mm2.config.configdef import ConfigException
from mm2.mirror.filters import DefaultConfigPropertyFilter, DefaultGroupFilter, DefaultTopicFilter


def topics(**props: str) -> DefaultTopicFilter:
    chosen = DefaultTopicFilter()
    chosen.configure({key.replace("_", "."): value for key, value in props.items()})
    return chosen


def test_the_default_topic_filter_allows_all_topics_except_internal_ones_and_replicas() -> None:
    chosen = topics()
    assert chosen.should_replicate_topic("orders")
    assert chosen.should_replicate_topic("x.internal")
    assert not chosen.should_replicate_topic("mm2-offsets.A.internal")
    assert not chosen.should_replicate_topic("t.replica")
    assert not chosen.should_replicate_topic("__consumer_offsets")


def test_names_must_match_in_full_and_exclusion_wins() -> None:
    chosen = topics(topics="orders, clicks.*", topics_exclude="clicks-old")
    assert chosen.should_replicate_topic("orders")
    assert not chosen.should_replicate_topic("orders2")
    assert chosen.should_replicate_topic("clicks-new")
    assert not chosen.should_replicate_topic("clicks-old")


def test_an_empty_list_includes_nothing_and_excludes_nothing() -> None:
    assert not topics(topics="").should_replicate_topic("orders")
    assert topics(topics_exclude="").should_replicate_topic("__consumer_offsets")


def test_a_group_cut_by_the_comma_still_works_as_in_java() -> None:
    chosen = topics(topics="(orders,clicks)-eu")
    assert chosen.should_replicate_topic("clicks-eu")
    assert not chosen.should_replicate_topic("clicks")


def test_a_bad_pattern_names_key_and_item() -> None:
    with pytest.raises(ConfigException, match=r"topics\b.*dangling meta character.*'\*'.*write \.\*"):
        topics(topics="orders, *")


def test_group_filter() -> None:
    chosen = DefaultGroupFilter()
    chosen.configure({})
    assert chosen.should_replicate_group("billing")
    assert not chosen.should_replicate_group("console-consumer-123")
    assert not chosen.should_replicate_group("connect-sink")
    chosen.configure({"groups": "b.*", "groups.exclude": ""})
    assert chosen.should_replicate_group("billing")
    assert not chosen.should_replicate_group("orders")


def test_config_property_filter() -> None:
    chosen = DefaultConfigPropertyFilter()
    chosen.configure({})
    assert chosen.should_replicate_config_property("retention.bytes")
    assert chosen.should_replicate_config_property("message.timestamp.before.max.ms")
    assert not chosen.should_replicate_config_property("min.insync.replicas")
    assert not chosen.should_replicate_config_property("min-insync.replicas"), "the names are patterns"
    assert not chosen.should_replicate_source_default("retention.bytes")
    chosen.configure({"config.properties.exclude": r"delete\.retention\..*", "use.defaults.from": "source"})
    assert not chosen.should_replicate_config_property("delete.retention.ms")
    assert chosen.should_replicate_config_property("min.insync.replicas")
    assert chosen.should_replicate_source_default("retention.bytes")
