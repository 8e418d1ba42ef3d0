"""docs/reference/configuration.md matches the definitions."""

from pathlib import Path

from mm2.config.keys.client_keys import ROLE_CONFIGS
from mm2.config.keys.connector_keys import SINK_CONNECTOR_CONFIG, SOURCE_CONNECTOR_CONFIG
from mm2.config.keys.mirror_keys import CONNECTOR_CONFIGS, OWN_CONFIG, THROTTLE_KEY
from mm2.config.keys.worker_keys import DISTRIBUTED_CONFIG, STANDALONE_CONFIG
from mm2.config.mirrormaker import TOP_CONFIG
from mm2.config.reference import OURS, page, sections

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "configuration.md"
DEFINITIONS = (
    TOP_CONFIG,
    *CONNECTOR_CONFIGS.values(),
    *ROLE_CONFIGS.values(),
    DISTRIBUTED_CONFIG,
    STANDALONE_CONFIG,
    SOURCE_CONNECTOR_CONFIG,
    SINK_CONNECTOR_CONFIG,
)


def rows() -> dict[str, list[str]]:
    """The rows of each key; a key may be in several tables, with another default."""
    found: dict[str, list[str]] = {}
    for line in PAGE.read_text().partition("\n## The process\n")[2].splitlines():
        if line.startswith("- `"):
            found.setdefault(line.split("`")[1], []).append(line)
    return found


def test_the_page_is_generated_from_the_definitions() -> None:
    assert PAGE.read_text() == page(), "run: .venv/bin/python -m mm2.config.reference > docs/reference/configuration.md"


def test_every_key_of_every_definition_is_in_it() -> None:
    assert not {name for definition in DEFINITIONS for name in definition.names} - rows().keys()


def test_our_keys_are_marked_and_kafkas_are_not() -> None:
    documented = rows()
    assert {THROTTLE_KEY, "rest.unauthenticated.access", *OWN_CONFIG.names} <= OURS
    for name, lines in documented.items():
        assert all(("*mm2 only.*" in line) == (name in OURS) for line in lines), name


def test_every_key_has_a_description_and_every_section_has_keys() -> None:
    for section in sections():
        assert section.keys, section.title
        assert not [key.name for key in section.keys if not key.documentation]
