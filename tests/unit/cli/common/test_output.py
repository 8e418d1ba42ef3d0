"""Documents as JSON and YAML."""

from __future__ import annotations

import argparse
import io
import json

import yaml

from mm2.cli.common.output import OutputFormat, write_document


def as_yaml(value: object) -> str:
    out = io.StringIO()
    write_document(argparse.Namespace(output=OutputFormat.YAML), value, out)
    return out.getvalue()


def test_yaml_has_the_same_content_as_json_in_its_order() -> None:
    document = {"rows": [{"topic": "orders", "lag": None, "name": "no"}, [], {}], "flow": "A->B\x1b[31m", "n": 1e-7}
    text = as_yaml(document)
    assert yaml.safe_load(text) == document
    assert text.splitlines()[:2] == ["rows:", "- topic: orders"]
    assert "\x1b" not in text


def test_repeated_documents_are_separated() -> None:
    out = io.StringIO()
    for count in range(2):
        write_document(argparse.Namespace(output=OutputFormat.YAML), {"n": count}, out, is_one_of_many=True)
    assert list(yaml.safe_load_all(out.getvalue())) == [{"n": 0}, {"n": 1}]


def test_sets_are_sorted_lists() -> None:
    out = io.StringIO()
    write_document(argparse.Namespace(output=OutputFormat.JSON), {"names": {"b", "a"}}, out)
    assert json.loads(out.getvalue()) == {"names": ["a", "b"]}
