"""Prints the SBOM of a wheel as CycloneDX JSON: the packages that the image contains, and the jars inside PySpark.

    .venv/bin/python tests/tools/sbom.py dist/mm2-….whl

The output depends on the wheel, conf/requirements.txt and SOURCE_DATE_EPOCH only: bin/release compares two of them by
their bytes. Versions are those of conf/requirements.txt, licenses those that the installed packages declare.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import importlib.metadata
import importlib.util
import os
import re
import sys
import uuid
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL
from packaging.utils import canonicalize_name, parse_wheel_filename

ROOT: Final = Path(__file__).parents[2]
_PIN: Final = re.compile(r"^([\w.-]+)==([^\s;]+)", re.MULTILINE)
_JAR: Final = re.compile(r"(.+?)-v?(\d.*)\.jar")
_NAMESPACE: Final = uuid.UUID("7d0a5a3c-54d1-4fb5-8a3f-0f6b8f0c3f7e")  # of this project's SBOMs


def main(wheel: Path) -> str:
    """The SBOM."""
    name, version, *_ = parse_wheel_filename(wheel.name)
    product = Component(
        name=name,
        version=str(version),
        type=ComponentType.APPLICATION,
        bom_ref=f"pkg:pypi/{name}@{version}",
        purl=PackageURL("pypi", None, name, str(version)),
        licenses=[LicenseFactory().make_with_id("Apache-2.0")],
        hashes=[_sha256(wheel)],
    )
    at = dt.datetime.fromtimestamp(int(os.environ["SOURCE_DATE_EPOCH"]), dt.UTC)
    parts = list(packages())
    bom = Bom(
        components=parts,
        serial_number=uuid.uuid5(_NAMESPACE, str(product.hashes)),
        metadata=BomMetaData(component=product, timestamp=at),
    )
    bom.register_dependency(product, parts)
    return JsonV1Dot6(bom).output_as_string(indent=2)


def packages() -> Iterator[Component]:
    """The packages of the image; PySpark's contains its jars."""
    pinned = {canonicalize_name(name): version for name, version in _PIN.findall(_read("conf/requirements.txt"))}
    wanted = [line for line in _read("conf/docker/packages.txt").splitlines() if not line.startswith("#")]
    for name in wanted:
        if name == "setuptools":  # removed from the image at the end of its build
            continue
        version = pinned[canonicalize_name(name)]
        purl = PackageURL("pypi", None, name, version)
        declared = importlib.metadata.metadata(name).json.get("license_expression")
        yield Component(
            name=name,
            version=version,
            bom_ref=purl.to_string(),
            purl=purl,
            licenses=[LicenseFactory().make_from_string(str(declared))] if declared else [],
            components=jars() if name == "pyspark" else (),
        )


def jars() -> Iterator[Component]:
    """The jars of the installed PySpark."""
    spec = importlib.util.find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    for jar in sorted((Path(spec.origin).parent / "jars").glob("*.jar")):
        group, name, version = _coordinates(jar)
        purl = (
            PackageURL("maven", group or None, name, version) if group else PackageURL("generic", None, name, version)
        )
        yield Component(
            name=name,
            group=group or None,
            version=version,
            bom_ref=f"{purl.to_string()}#{jar.name}",
            purl=purl,
            hashes=[_sha256(jar)],
        )


def _coordinates(jar: Path) -> tuple[str, str, str]:
    """Group, name and version: from the jar's pom.properties, or else from its file name, which has no group."""
    found = _JAR.fullmatch(jar.name)
    name, version = found.groups() if found else (jar.stem, "")
    with zipfile.ZipFile(jar) as archive:
        for entry in archive.namelist():
            # A jar with shaded libraries has the files of these libraries, too.
            if entry.startswith("META-INF/maven/") and entry.endswith(f"/{name}/pom.properties"):
                lines = archive.read(entry).decode().splitlines()
                pom = dict(line.split("=", 1) for line in lines if "=" in line and line[0] != "#")
                return pom["groupId"].strip(), pom["artifactId"].strip(), pom["version"].strip()
    return "", name, version


def _sha256(file: Path) -> HashType:
    return HashType(alg=HashAlgorithm.SHA_256, content=hashlib.sha256(file.read_bytes()).hexdigest())


def _read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


if __name__ == "__main__":
    print(main(Path(sys.argv[1])))
