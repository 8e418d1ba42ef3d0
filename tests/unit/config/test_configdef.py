"""Texts and results were observed on ConfigDef and its validators of kafka-clients 4.3.0."""

from __future__ import annotations

import pytest

from mm2.config.configdef import (
    AbstractConfig,
    ConfigDef,
    ConfigException,
    Importance,
    Password,
    Recommender,
    Type,
    Validator,
    at_least,
    between,
    distinct,
    non_empty,
    one_of,
    one_of_any_case,
    subset_of,
)
from mm2.config.definitions.validators import (
    PARTITIONS,
    REPLICATION_FACTOR,
    non_empty_without_control_characters,
    regular_expression,
    unique_aliases,
)


def sample() -> ConfigDef:
    return (
        ConfigDef()
        .define("x", Type.INT, importance=Importance.HIGH, doc="Required.")
        .define("l", Type.LIST, [], distinct())
        .define("m", Type.LIST, "a", subset_of("a", "b"))
        .define("pw", Type.PASSWORD, None)
        .define("r", Type.INT, 5, at_least(1))
    )


@pytest.mark.parametrize(
    ("validator", "value", "text"),
    [
        (at_least(1), 0, "Invalid value 0 for configuration k: Value must be at least 1"),
        (at_least(1), None, "Invalid value null for configuration k: Value must be non-null"),
        (between(0, 10), 11, "Invalid value 11 for configuration k: Value must be no more than 10"),
        (between(0.5, 1.0), 0.2, "Invalid value 0.2 for configuration k: Value must be at least 0.5"),
        (one_of("a", "b"), "c", "Invalid value c for configuration k: String must be one of: a, b"),
        (one_of("a", "b"), "A", "Invalid value A for configuration k: String must be one of: a, b"),
        (one_of("a", "b"), None, "Invalid value null for configuration k: String must be one of: a, b"),
        (
            one_of_any_case("a", "b"),
            "c",
            "Invalid value c for configuration k: String must be one of (case insensitive): A, B",
        ),
        (non_empty(), "", "Invalid value  for configuration k: String must be non-empty"),
        (
            non_empty_without_control_characters(),
            "",
            "Invalid value  for configuration k: String may not be empty",
        ),
        (
            non_empty_without_control_characters(),
            "a\x01b\n",
            (
                "Invalid value a\x01b\n for configuration k: String may not contain control sequences but had the following "
                "ASCII chars: 1, 10"
            ),
        ),
        (subset_of("legacy", "new"), ["x"], "Invalid value x for configuration k: String must be one of: legacy, new"),
        (
            subset_of("legacy", "new"),
            [],
            "Configuration 'k' must not be empty. Valid values include: [legacy, new]",
        ),
        (
            distinct(empty_allowed=False),
            [],
            "Configuration 'k' must not be empty. Valid values include: any non-empty value",
        ),
        (distinct(), None, "Configuration 'k' values must not be null."),
        (distinct(), ["a", "a"], "Configuration 'k' values must not be duplicated."),
        (distinct(), ["a", ""], "Configuration 'k' values must not be empty."),
        (
            unique_aliases("transformation aliases"),
            ["a", "a"],
            "Invalid value [a, a] for configuration k: Duplicate alias provided.",
        ),
        (
            PARTITIONS,
            0,
            "Invalid value 0 for configuration k: Number of partitions must be positive, or -1 to use the broker's default",
        ),
        (
            REPLICATION_FACTOR,
            -2,
            (
                "Invalid value -2 for configuration k: Replication factor must be positive and not larger than the number of "
                "brokers in the Kafka cluster, or -1 to use the broker's default"
            ),
        ),
    ],
)
def test_validators_reject_with_kafka_s_texts(validator: Validator, value: object, text: str) -> None:
    with pytest.raises(ConfigException) as caught:
        validator.ensure_valid("k", value)
    assert str(caught.value) == text


@pytest.mark.parametrize(
    ("validator", "value"),
    [
        (at_least(0, nullable=True), None),
        (between(0, 10), 10),
        (one_of_any_case("a"), "A"),
        (non_empty(), None),
        (non_empty(), "  "),
        (non_empty_without_control_characters(), None),
        (distinct(null_allowed=True), None),
        (distinct(), []),
        (regular_expression(), "a.*"),
        (PARTITIONS, -1),
    ],
)
def test_validators_accept(validator: Validator, value: object) -> None:
    validator.ensure_valid("k", value)


@pytest.mark.parametrize(
    ("validator", "description"),
    [
        (at_least(0), "[0,...]"),
        (between(0, 900), "[0,...,900]"),
        (one_of("a", "b"), "[a, b]"),
        (one_of_any_case("a"), "(case insensitive) [A]"),
        (subset_of("legacy", "new"), "[legacy, new]"),
        (distinct(), ""),
    ],
)
def test_descriptions_are_kafka_s(validator: Validator, description: str) -> None:
    assert str(validator) == description


def test_defaults_fill_gaps_and_are_not_shared() -> None:
    parsed = sample().parse({"x": "1"})
    assert parsed == {"x": 1, "l": [], "m": ["a"], "pw": None, "r": 5}
    parsed["m"].append("spoilt")
    assert sample().parse({"x": "1"})["m"] == ["a"]


def test_duplicates_are_removed_silently_only_from_distinct_lists() -> None:
    definition = sample().define("aliases", Type.LIST, [], unique_aliases("aliases")).define("plain", Type.LIST, [])
    parsed = definition.parse({"x": "1", "l": "a,a,b", "plain": "a,a"})
    assert (parsed["l"], parsed["plain"]) == (["a", "b"], ["a", "a"])
    with pytest.raises(ConfigException, match="Duplicate alias provided"):
        definition.parse({"x": "1", "aliases": "a,a"})


def test_missing_required_key() -> None:
    with pytest.raises(ConfigException) as caught:
        sample().parse({})
    assert str(caught.value) == 'Missing required configuration "x" which has no default value.'
    assert caught.value.name == "x"


def test_validation_reports_every_key() -> None:
    assert sample().validate({"r": "0", "m": "z", "x": "q"}) == [
        ("x", ["Invalid value q for configuration x: Not a number of type INT"]),
        ("l", []),
        ("m", ["Invalid value z for configuration m: String must be one of: a, b"]),
        ("pw", []),
        ("r", ["Invalid value 0 for configuration r: Value must be at least 1"]),
    ]


def test_recommendations_see_the_parsed_values() -> None:
    definition = sample().define(
        "n",
        Type.STRING,
        None,
        recommender=Recommender(lambda _, parsed: [parsed["x"]], lambda _, parsed: parsed["x"] != 1),
    )
    last = definition.config_values({"x": "1"})[-1]
    assert (last.recommended_values, last.visible) == ([1], False)


def test_a_key_is_defined_once_and_its_default_must_be_valid() -> None:
    with pytest.raises(ConfigException, match="Configuration x is defined twice"):
        sample().define("x", Type.INT)
    with pytest.raises(ConfigException, match="Value must be at least 1"):
        ConfigDef().define("y", Type.INT, 0, at_least(1))


def test_definitions_are_extended_without_changing_their_base() -> None:
    base = sample()
    grown = ConfigDef(base).define("more", Type.STRING, "").redefine("r", default=9)
    assert "more" not in base
    assert (base.parse({"x": "1"})["r"], grown.parse({"x": "1"})["r"]) == (5, 9)
    assert grown.only(["more", "x"]).names == ("x", "more")
    assert len(grown) == len(base) + 1


def test_errors_can_show_the_key_as_the_user_wrote_it() -> None:
    with pytest.raises(ConfigException, match=r"Invalid value z for configuration A->B\.x: Not a number of type INT"):
        sample().keys["x"].parse("z", shown_as="A->B.x")


def test_config_returns_typed_values_and_tracks_unread_keys() -> None:
    config = AbstractConfig(sample(), {"x": "1", "pw": "s3cret", "l": "b", "producer.acks": "1", "odd": "2"})
    assert config.int("x") == 1
    assert config.list("l") == ["b"]
    assert config.password("pw") == Password("s3cret")
    assert config.get("r") == 5
    assert config.originals_with_prefix("producer.") == {"acks": "1"}
    assert config.originals_with_prefix("producer.", strip=False) == {"producer.acks": "1"}
    assert config.unused() == {"odd"}
    config.ignore("odd")
    assert config.unused() == set()
    assert config.originals["odd"] == "2"
    assert "s3cret" not in repr(config.values)


def test_config_refuses_unknown_keys_and_wrong_types() -> None:
    config = AbstractConfig(sample(), {"x": "1"})
    with pytest.raises(ConfigException, match="Unknown configuration 'nope'"):
        config.get("nope")
    with pytest.raises(TypeError, match="x is 1, not a str"):
        config.str("x")
