"""Shapes and counting rules as observed on ``AbstractHerder.generateResult`` and the JSON of connect-runtime 4.3.0."""

from __future__ import annotations

from mm2.codec import encode
from mm2.config.configdef import ConfigDef, ConfigInfos, ConfigValue, Importance, Recommender, Type, Width, at_least


def sample() -> ConfigDef:
    return (
        ConfigDef()
        .define("n", Type.INT, 1, at_least(1), Importance.HIGH, "How many.", group="Common", order=1, width=Width.SHORT)
        .define("l", Type.LIST, "a,b", group="Lists", recommender=Recommender(lambda _name, _parsed: ["a", "c"]))
        .define("pw", Type.PASSWORD, group="Common", display_name="Secret", dependents=["n"])
    )


def test_all_values_are_strings_in_the_order_of_definition() -> None:
    infos = encode(sample().config_infos("Some", {"n": "2", "l": "x, y", "pw": "s3cret"}))
    assert infos["name"] == "Some"
    assert infos["error_count"] == 0
    assert infos["groups"] == ["Common", "Lists"]
    assert infos["configs"][0] == {
        "definition": {
            "name": "n",
            "type": "INT",
            "required": False,
            "default_value": "1",
            "importance": "HIGH",
            "documentation": "How many.",
            "group": "Common",
            "order_in_group": 1,
            "width": "SHORT",
            "display_name": "n",
            "dependents": [],
        },
        "value": {"name": "n", "value": "2", "recommended_values": [], "errors": [], "visible": True},
    }
    values = [config["value"] for config in infos["configs"]]
    assert [(value["name"], value["value"]) for value in values] == [("n", "2"), ("l", "x,y"), ("pw", "[hidden]")]
    assert values[1]["recommended_values"] == ["a", "c"]
    definitions = [config["definition"] for config in infos["configs"]]
    assert (definitions[1]["default_value"], definitions[2]["default_value"]) == ("a,b", None)
    assert definitions[2]["required"]
    assert (definitions[2]["display_name"], definitions[2]["dependents"]) == ("Secret", ["n"])


def test_a_value_without_a_type_is_null_and_the_validator_can_add_an_error() -> None:
    infos = sample().config_infos("Some", {"n": "x"})
    assert infos.errors == [
        ("n", "Invalid value x for configuration n: Not a number of type INT"),
        ("n", "Invalid value null for configuration n: Value must be non-null"),
        ("pw", 'Missing required configuration "pw" which has no default value.'),
    ]
    assert infos.error_count == 3
    assert [config.value.value for config in infos.configs if config.value] == [None, "a,b", None]


def test_errors_of_undefined_keys_come_first_without_a_definition() -> None:
    values = [*sample().config_values({"pw": "p"}), ConfigValue("odd", None, errors=["No.", "Never."])]
    infos = ConfigInfos.of("Some", sample().keys, values)
    assert encode(infos)["configs"][0] == {
        "definition": None,
        "value": {"name": "odd", "value": None, "recommended_values": [], "errors": ["No.", "Never."], "visible": True},
    }
    assert infos.error_count == 2


def test_parts_under_a_prefix_count_keys_with_errors() -> None:
    values = sample().config_values({"n": "x"})
    part = ConfigInfos.under_prefix(sample().keys, values, "key.converter.")
    assert part.error_count == 2
    assert [config.value.name for config in part.configs if config.value] == [
        "key.converter.n",
        "key.converter.l",
        "key.converter.pw",
    ]
    whole = ConfigInfos.together("C", [sample().config_infos("C", {"pw": "p"}), part])
    assert (whole.name, whole.error_count, whole.groups) == ("C", 2, ("Common", "Lists"))
    assert len(whole.configs) == 6


def test_an_undefined_dependent_is_an_error() -> None:
    values = ConfigDef().define("a", Type.STRING, "", dependents=["b"]).config_values({})
    assert [(value.name, value.errors, value.visible) for value in values] == [
        ("a", [], True),
        ("b", ["b is referred in the dependents, but not defined."], False),
    ]
