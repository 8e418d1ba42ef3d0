from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from mm2.connect.api import ConnectError, Converter
from mm2.connect.plugins import Plugins, PluginType, VersionedPluginError
from mm2.connect.plugins.scan import candidate_modules, plugin_locations
from tests.unit.connect.plugin_folders import CONVERTER, dependency, entry_points, write_archive, write_files


def converter(version: str, name: str = "AcmeConverter") -> dict[str, str]:
    """A package with a converter that needs the package dep in some version."""
    return {
        "acme/__init__.py": "",
        "acme/convert.py": CONVERTER.format(name=name, version=version),
        **dependency(version),
    }


def found(props: dict[str, str]) -> tuple[Plugins, list[dict[str, str]]]:
    """The registry, and its plugins that are not built in."""
    plugins = Plugins(props)
    listing = [entry for entry in plugins.listing(connectors_only=False) if not entry["class"].startswith("org.")]
    return plugins, listing


ACME_10 = {"class": "acme.convert.AcmeConverter", "type": "converter", "version": "1.0"}
ACME_20 = {**ACME_10, "version": "2.0"}


def test_two_folders_with_different_versions_of_a_dependency_both_work(tmp_path: Path) -> None:
    write_files(tmp_path / "old", converter("1.0"))
    write_files(tmp_path / "new", converter("2.0"))
    plugins, listing = found({"plugin.path": str(tmp_path)})
    assert listing == [ACME_10, ACME_20]
    for version in ("1.0", "2.0"):
        made = plugins.new("AcmeConverter", Converter, key="key.converter", version=version)
        assert made.from_connect_data("t", (), None, None) == f"dep {version}".encode()
        assert made.to_connect_data("t", (), b"").value == f"late {version}"
    assert plugins.versions("Acme", Converter) == ["1.0", "2.0"]
    newest: Any = plugins.new("Acme", Converter, key="key.converter")
    assert newest.version() == "2.0"
    ranged: Any = plugins.new("Acme", Converter, key="key.converter", version="[1.0,2.0)")
    assert ranged.version() == "1.0"


def test_a_missing_version_is_rejected_with_the_available_ones(tmp_path: Path) -> None:
    write_files(tmp_path / "old", converter("1.0"))
    plugins, _ = found({"plugin.path": str(tmp_path)})
    with pytest.raises(VersionedPluginError) as raised:
        plugins.new("Acme", Converter, key="key.converter", version="[3,)")
    assert str(raised.value) == (
        "Plugin acme.convert.AcmeConverter not found that matches the version range [3,), available versions: [1.0]"
    )
    assert raised.value.available == ["1.0"]
    with pytest.raises(
        ConnectError, match=r"Version \[3 of the class at key\.converter is neither a version nor a range"
    ):
        plugins.new("Acme", Converter, key="key.converter", version="[3")


def test_a_location_is_a_folder_a_wheel_or_a_pip_target(tmp_path: Path) -> None:
    path = tmp_path / "plugins"
    write_files(path / "folder", {"a.py": ""})
    write_archive(path / "wheel.whl", {"b.py": ""})
    write_archive(path / "with-wheels" / "c.zip", {"c.py": ""})
    write_files(path / "empty", {"README.txt": ""})
    write_files(tmp_path / "target", {"d/__init__.py": "", **entry_points("d:D")})
    archive = write_archive(tmp_path / "alone.zip", {"e.py": ""})
    locations = plugin_locations([str(path), str(tmp_path / "target"), str(archive)])
    assert [location.path.name for location in locations] == [
        "folder",
        "wheel.whl",
        "with-wheels",
        "target",
        "alone.zip",
    ]
    assert [place.name for place in locations[2].search] == ["with-wheels", "c.zip"]


def test_a_missing_entry_is_logged_and_skipped(tmp_path: Path) -> None:
    write_archive(tmp_path / "ok.zip", converter("1.0"))
    with capture_logs() as logs:
        _, listing = found({"plugin.path": f"{tmp_path / 'absent'}, {tmp_path}"})
    assert listing == [ACME_10]
    assert [log["entry"] for log in logs if "plugin path entry" in log["event"]] == [str(tmp_path / "absent")]


@pytest.mark.parametrize(
    ("discovery", "seen"),
    [
        ("only_scan", ["Scanned", "Both"]),
        ("service_load", ["Listed", "Both"]),
        ("hybrid_warn", ["Scanned", "Both", "Listed"]),
        ("HYBRID_WARN", ["Scanned", "Both", "Listed"]),
    ],
)
def test_discovery_scans_or_reads_manifests_or_both(tmp_path: Path, discovery: str, seen: list[str]) -> None:
    files = {
        "one.py": CONVERTER.format(name="Scanned", version="1") + CONVERTER.format(name="Both", version="1"),
        # No import of mm2 that the scan could find.
        "two.py": "import importlib\nListed = importlib.import_module('one_hidden').Hidden\n",
        "one_hidden.py": "exec('''" + CONVERTER.format(name="Hidden", version="1") + "''')\n",
        **entry_points("one:Both", "two:Listed"),
        **dependency("1"),
    }
    write_files(tmp_path / "acme", files)
    _, listing = found({"plugin.path": str(tmp_path), "plugin.discovery": discovery})
    assert {entry["class"].rpartition(".")[2] for entry in listing} == set(seen)


def test_a_plugin_without_a_manifest_is_logged_or_rejected(tmp_path: Path) -> None:
    write_files(tmp_path / "acme", converter("1.0"))
    with capture_logs() as logs:
        Plugins({"plugin.path": str(tmp_path)})
    assert any(
        log["log_level"] == "warning" and "acme.convert:AcmeConverter" in str(log.get("positional_args", log["event"]))
        for log in logs
    )
    with pytest.raises(ConnectError, match=r"missing ServiceLoader manifests(.|\n)*acme\.convert:AcmeConverter"):
        Plugins({"plugin.path": str(tmp_path), "plugin.discovery": "hybrid_fail"})
    (tmp_path / "acme" / "mm2-plugins.txt").write_text("# ours\nacme.convert.AcmeConverter\n")
    _, listing = found({"plugin.path": str(tmp_path), "plugin.discovery": "hybrid_fail"})
    assert listing == [ACME_10]


def test_a_bad_plugin_does_not_affect_the_others(tmp_path: Path) -> None:
    bad = {"broken.py": "import mm2\nimport no_such_module\n", "worse.py": "import mm2\nraise SystemError\n"}
    write_files(tmp_path / "bad", {**bad, **entry_points("broken:X", "nowhere:Y", "worse:Z")})
    write_files(tmp_path / "good", converter("1.0"))
    with capture_logs() as logs:
        _, listing = found({"plugin.path": str(tmp_path)})
    assert listing == [ACME_10]
    assert {log.get("plugin") for log in logs if log["event"] == "plugin cannot be loaded, ignoring it"} == {
        "broken:X",
        "nowhere:Y",
        "worse:Z",
    }


def test_scanning_imports_only_modules_with_plugins(tmp_path: Path) -> None:
    trap = {"dep/trap.py": "raise SystemExit('imported')\n", "tests/test_mm2.py": "import mm2\nraise SystemExit\n"}
    write_files(tmp_path / "acme", {**converter("1.0"), **trap})
    _, listing = found({"plugin.path": str(tmp_path)})
    assert listing == [ACME_10]


def test_modules_that_import_plugin_modules_are_candidates_too() -> None:
    sources = [
        ("acme", "from .base import Base\n"),
        ("acme.base", "from mm2.connect.api import Converter\nclass Base(Converter): ...\n"),
        ("acme.sub.other", "from ..base import Base\n"),
        ("acme.alien", "import json\n"),
        ("acme.bad", "import mm2 as (\n"),
    ]
    assert candidate_modules(sources) == ["acme", "acme.base", "acme.sub.other"]


def test_ambiguous_aliases_are_removed_with_a_log_line(tmp_path: Path) -> None:
    write_files(tmp_path / "one", {"one.py": CONVERTER.format(name="AcmeConverter", version="1"), **dependency("1")})
    write_files(tmp_path / "two", {"two.py": CONVERTER.format(name="AcmeConverter", version="1"), **dependency("1")})
    with capture_logs() as logs:
        plugins = Plugins({"plugin.path": str(tmp_path)})
    dropped = {log["alias"]: log["classes"] for log in logs if log["event"] == "ambiguous plugin alias is ignored"}
    assert dropped == {
        "AcmeConverter": ["one.AcmeConverter", "two.AcmeConverter"],
        "Acme": ["one.AcmeConverter", "two.AcmeConverter"],
    }
    with pytest.raises(
        ConnectError, match=r"More than one converter matches alias Acme of configuration key\.converter"
    ):
        plugins.find("Acme", Converter, key="key.converter")
    assert plugins.find("one.AcmeConverter", Converter, key="key.converter").__name__ == "AcmeConverter"


def test_a_converter_of_a_connector_s_own_folder_is_found_there_only(tmp_path: Path) -> None:
    write_files(
        tmp_path / "acme",
        {
            "source.py": "from mm2.connect.files import FileStreamSourceConnector\nclass Own(FileStreamSourceConnector): ...\n",
            "private.py": "import mm2.connect.converters as c\nclass Secret(c.StringConverter): ...\n",
            **entry_points("source:Own"),
        },
    )
    plugins = Plugins({"plugin.path": str(tmp_path), "plugin.discovery": "service_load"})
    loader = plugins.connector_loader({"connector.class": "Own"})
    assert loader is not None
    assert loader is plugins.loader_of(plugins.new_connector({"connector.class": "Own"}))
    made = plugins.new("private.Secret", Converter, key="value.converter", loader=loader)
    assert plugins.name_of(type(made), Converter) == "private.Secret"
    with pytest.raises(
        ConnectError, match=r"Class private\.Secret of configuration value\.converter could not be found"
    ):
        plugins.new("private.Secret", Converter, key="value.converter")
    # The connector's location first, then the shared ones.
    assert plugins.new("StringConverter", Converter, key="value.converter", loader=loader)


def test_entry_points_of_the_environment_are_plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_files(tmp_path, {**converter("1.0"), **entry_points("acme.convert:AcmeConverter")})
    monkeypatch.syspath_prepend(str(tmp_path))
    plugins, listing = found({})
    assert listing == [ACME_10]
    assert plugins.list(PluginType.CONVERTER)[0].location == "classpath"


def test_an_unknown_connector_is_rejected_with_the_available_ones() -> None:
    with pytest.raises(
        ConnectError,
        match=r"Failed to find any class that implements Connector and which name matches Nope, available connectors are: .*Verifiable",
    ):
        Plugins({}).new_connector({"connector.class": "Nope"})


def test_an_unknown_discovery_mode_is_rejected() -> None:
    with pytest.raises(ConnectError, match=r"plugin\.discovery is guess; it must be one of only_scan"):
        Plugins({"plugin.discovery": "guess"})
