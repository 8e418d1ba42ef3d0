"""docs/how-to/runbooks: a page for every alert, with commands that parse."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from mm2.cli.mm2 import parser
from tests.unit.deployment_files.promtool import CONF, alerts

RUNBOOKS = CONF.parent / "docs" / "how-to" / "runbooks"
PARTS = ("**It means:**", "**If not fixed:**", "**See it:**", "**Do:**", "**Resolved when**", "**Drill:**")


def test_every_alert_has_a_runbook_and_every_runbook_an_alert() -> None:
    pages = {page.stem for page in RUNBOOKS.glob("*.md")} - {"README"}
    assert pages == set(alerts())
    index = dict(
        re.findall(r"^\| \[(\w+)\]\(\1\.md\) \| ([^|]+) \|", (RUNBOOKS / "README.md").read_text(), re.MULTILINE)
    )
    assert list(index) == list(alerts())
    for name, variants in alerts().items():
        text = (RUNBOOKS / f"{name}.md").read_text()
        assert text.startswith(f"# {name}\n")
        assert [part for part in PARTS if part not in text] == [], name
        for rule in variants:
            assert rule["labels"]["severity"] in index[name], name
            assert rule["labels"]["severity"] in text.splitlines()[2], name


def test_links_between_the_pages_resolve() -> None:
    for page in RUNBOOKS.glob("*.md"):
        for link in re.findall(r"\]\(([^)#]+)", page.read_text()):
            assert (RUNBOOKS / link).exists(), f"{page.name}: {link}"


@pytest.mark.parametrize("page", sorted(RUNBOOKS.glob("*.md")), ids=lambda page: page.stem)
def test_the_commands_of_a_page_parse(page: Path) -> None:
    text = re.sub(r"\s+", " ", page.read_text())
    blocks = "\n".join(re.findall(r"```sh\n(.*?)```", page.read_text(), re.DOTALL))
    output = [line.split(" #")[0] for line in blocks.splitlines()] + re.findall(
        r"`(mm2 [a-z-]+ mm2\.properties[^`]*)`", text
    )
    found = [shlex.split(command) for command in output if command.startswith("mm2 ")]
    assert found or page.stem == "Mm2MicroBatchesLost"
    for _, *arguments in found:
        parser().parse_args(arguments)  # ends the test when it cannot
