"""Every sample of a config provider limits what the provider reads, and names the limit as Kafka does."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
_CLASS = re.compile(
    r"config\.providers\.([\w-]+)\.class\s*[=:]\s*\S*?(File|Directory|EnvVar)ConfigProvider", re.MULTILINE
)
LIMITS = {"File": "allowed.paths", "Directory": "allowed.paths", "EnvVar": "allowlist.pattern"}


def documents() -> Iterator[Path]:
    yield from sorted((ROOT / "docs").rglob("*.md"))
    yield from sorted(file for file in (ROOT / "conf").rglob("*") if file.is_file())
    yield from sorted(ROOT.glob("*.md"))


def missing(text: str) -> list[str]:
    """The limits that are not in the same paragraph or file of properties."""
    return [
        f"config.providers.{name}.param.{LIMITS[kind]}"
        for name, kind in _CLASS.findall(text)
        if not re.search(rf"config\.providers\.{re.escape(name)}\.param\.{re.escape(LIMITS[kind])}\s*[=:]\s*\S", text)
    ]


@pytest.mark.parametrize("file", list(documents()), ids=lambda file: str(file.relative_to(ROOT)))
def test_each_config_provider_of_a_sample_is_limited(file: Path) -> None:
    text = file.read_text(errors="replace")
    parts = re.split(r"^```.*$", text, flags=re.MULTILINE) if file.suffix == ".md" else [text]
    assert [key for part in parts for key in missing(part)] == []


def test_the_search_finds_an_unlimited_provider() -> None:
    sample = "#config.providers.f.class = org.apache.kafka.common.config.provider.FileConfigProvider\n"
    assert missing(sample) == ["config.providers.f.param.allowed.paths"]
    assert missing(sample + "#config.providers.f.param.allowed.paths = /etc/x\n") == []
    assert sum(len(_CLASS.findall(file.read_text(errors="replace"))) for file in documents()) >= 5
