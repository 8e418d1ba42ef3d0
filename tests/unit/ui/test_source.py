from pathlib import Path

from mm2.config.files.properties import load_properties
from mm2.config.mirrormaker import MirrorMakerConfig
from mm2.config.origins import Setting
from mm2.ui.source import Settings

TEXT = """clusters = A, B
A.bootstrap.servers = a:9092
B.bootstrap.servers = b:9092
B.ssl.keystore.password = correct-horse
A->B.enabled = true
replication.factor = 1
worker.of.unknown = 7
"""


def replication_factor(settings: Settings) -> Setting:
    (found,) = (
        setting
        for section in settings.sections["A->B"]
        if section.name == "MirrorSourceConnector"
        for setting in section.settings
        if setting.key == "replication.factor"
    )
    return found


def test_line_numbers_are_returned_while_the_file_matches_the_configuration(tmp_path: Path) -> None:
    file = tmp_path / "mm2.properties"
    file.write_text(TEXT)
    config = MirrorMakerConfig(load_properties(file))
    settings = Settings.of(config, file)
    assert settings.sections.keys() == {"", "A->B", "B->A"}  # B->A exists for its heartbeats
    assert (replication_factor(settings).value, replication_factor(settings).line) == ("1", 6)
    assert [(one.key, one.line) for one in settings.unread] == [("worker.of.unknown", 7)]
    assert "correct-horse" not in str(settings)

    # a new version of the file that is not in effect yet
    file.write_text(TEXT.replace("factor = 1", "factor = 3"))
    assert (
        replication_factor(Settings.of(config, file)).value,
        replication_factor(Settings.of(config, file)).line,
    ) == (
        "1",
        None,
    )
    file.unlink()
    assert replication_factor(Settings.of(config, file)).line is None
