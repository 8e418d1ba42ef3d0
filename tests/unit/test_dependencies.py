"""The installed packages are the pinned ones, are compatible, and have no known vulnerability.

This test has no network access: docs/how-to/supply-chain.md documents how to check for newer advisories.
"""

from __future__ import annotations

import configparser
import importlib.metadata
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[2]

#: A dependency of pyjks for an unused format that must be compiled: bin/setup omits it.
NOT_INSTALLED = {"twofish"}

#: The first fixed version by package and advisory; known in November 2026, and not complete.
FIXED_IN = [
    ("certifi", "2024.7.4", "CVE-2024-39689"),
    ("cryptography", "44.0.1", "CVE-2024-12797"),
    ("h11", "0.16.0", "CVE-2025-43859"),
    ("httpx", "0.23.0", "CVE-2021-41945"),
    ("idna", "3.7", "CVE-2024-3651"),
    ("aiohttp", "3.12.14", "CVE-2025-53643"),
    ("jinja2", "3.1.6", "CVE-2025-27516"),
    ("nicegui", "2.9.1", "CVE-2025-21618"),
    ("orjson", "3.9.15", "CVE-2024-27454"),
    ("pycryptodomex", "3.19.1", "CVE-2023-52323"),
    ("pygments", "2.15.0", "CVE-2022-40896"),
    ("pyjwt", "2.13.0", "CVE-2026-48526"),
    ("pyspark", "3.5.2", "CVE-2025-55039"),
    ("python-multipart", "0.0.18", "CVE-2024-53981"),
    ("python-socketio", "5.14.0", "CVE-2025-61765"),
    ("pyyaml", "5.4", "CVE-2020-14343"),
    ("requests", "2.32.4", "CVE-2024-47081"),
    ("setuptools", "78.1.1", "CVE-2025-47273"),
    ("starlette", "0.49.1", "CVE-2025-62727"),
    ("urllib3", "2.6.0", "CVE-2025-66418"),
    ("websockets", "9.1", "CVE-2021-33880"),
    ("werkzeug", "3.0.6", "CVE-2024-49767"),
]


HASH = re.compile(r"--hash=sha256:[0-9a-f]{64}")


def options() -> configparser.ConfigParser:
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg")
    return parser


def wanted(*extras: str) -> list[Requirement]:
    """The requirements in setup.cfg."""
    parser = options()
    texts = [parser["options"]["install_requires"], *(parser["options.extras_require"][extra] for extra in extras)]
    lines = (line.strip() for text in texts for line in text.splitlines())
    return [Requirement(line) for line in lines if line and not line.startswith("#")]


def pins() -> dict[str, Version]:
    found: dict[str, Version] = {}
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            requirement = Requirement(line)
            (pin,) = requirement.specifier
            assert pin.operator == "==", line
            found[canonicalize_name(requirement.name)] = Version(pin.version)
    return found


def hashes() -> dict[str, list[str]]:
    """The hashes of each ``name==version`` in conf/requirements.txt."""
    found: dict[str, list[str]] = {}
    for line in (ROOT / "conf" / "requirements.txt").read_text().splitlines():
        words = line.removesuffix("\\").split()
        if line and not line.startswith(("#", " ")):
            name, _, version = words.pop(0).partition("==")
            last = found.setdefault(f"{canonicalize_name(name)}=={version}", [])
        if not line.startswith("#"):
            assert all(HASH.fullmatch(word) for word in words), line
            last += words
    return found


def needed(requirements: list[Requirement]) -> Iterator[tuple[str, Requirement]]:
    """Each direct and transitive requirement with the package that needs it."""
    left, seen = [("setup.cfg", requirement) for requirement in requirements], set[tuple[str, str]]()
    while left:
        who, requirement = left.pop()
        yield who, requirement
        for extra in ("", *requirement.extras):
            key = (canonicalize_name(requirement.name), extra)
            if key in seen:
                continue
            seen.add(key)
            if key[0] in NOT_INSTALLED:
                continue
            for text in importlib.metadata.requires(requirement.name) or ():
                further = Requirement(text)
                if further.marker is None or further.marker.evaluate({"extra": extra}):
                    left.append((requirement.name, further))


def test_every_dependency_is_pinned_installed_as_pinned_and_within_its_bounds() -> None:
    pinned = pins()
    for who, requirement in needed(wanted("test")):
        name = canonicalize_name(requirement.name)
        assert name in pinned, f"{who} needs {requirement}, which constraints.txt does not pin"
        if name not in NOT_INSTALLED:
            assert Version(importlib.metadata.version(requirement.name)) == pinned[name], name
        assert requirement.specifier.contains(pinned[name], prereleases=True), f"{who} needs {requirement}"


@pytest.mark.parametrize("requirement", wanted("jks", "aws", "kerberos", "test"), ids=str)
def test_bounds_are_lower_and_upper(requirement: Requirement) -> None:
    assert {">=", "<"} <= {part.operator for part in requirement.specifier}


def test_no_pinned_or_allowed_version_has_a_known_vulnerability() -> None:
    pinned = pins()
    asked: dict[str, SpecifierSet] = {
        canonicalize_name(one.name): one.specifier for one in wanted("jks", "aws", "kerberos", "test")
    }
    for name, fixed, advisory in FIXED_IN:
        if name in pinned:
            assert pinned[name] >= Version(fixed), f"{name} {pinned[name]}: {advisory}"
        assert least(asked.get(name, SpecifierSet()), fixed) >= Version(fixed), (
            f"setup.cfg lets {name} in with {advisory}"
        )


def test_every_pinned_package_has_hashes() -> None:
    """tests/tools/hashes has to be run after a change of constraints.txt."""
    found = hashes()
    assert found.keys() == {f"{name}=={version}" for name, version in pins().items()}
    assert all(found.values())
    text = (ROOT / "conf" / "requirements.txt").read_text()
    assert "://" not in text
    assert "--index" not in text


def test_the_image_contains_the_required_packages_and_no_others() -> None:
    listed = [line for line in (ROOT / "conf/docker/packages.txt").read_text().splitlines() if line[0] != "#"]
    required = {canonicalize_name(one.name) for _, one in needed(wanted("aws", "jks"))} - NOT_INSTALLED
    assert set(listed) == required | {"setuptools"}
    assert len(listed) == len(set(listed))


def test_the_base_of_the_image_is_pinned_by_its_digest() -> None:
    bases = re.findall(r"^FROM (\S+)", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert len(bases) == 2
    assert len(set(bases)) == 1
    assert re.fullmatch(r"debian:bookworm-slim@sha256:[0-9a-f]{64}", bases[0])


@pytest.mark.parametrize("file", ["bin/setup", "conf/docker/packages.sh", "tests/tools/gssapi"])
def test_packages_are_installed_with_their_hashes_only(file: str) -> None:
    lines = (ROOT / file).read_text().splitlines()
    commands = [line for line in lines if re.search(r"\binstall .*(-r|--requirement)\b", line)]
    assert commands
    assert all("--require-hashes" in line and "--no-deps" in line for line in commands), commands


def least(specifier: SpecifierSet, default: str) -> Version:
    """The lower bound."""
    return max((Version(part.version) for part in specifier if part.operator == ">="), default=Version(default))
