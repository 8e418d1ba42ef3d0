"""The data source of the pages."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mm2.config.configdef import ConfigException
from mm2.config.files.properties import UnreadableFile, parse_properties, property_lines, read_text
from mm2.config.mirrormaker import MirrorMakerConfig
from mm2.config.origins import SettingsSection, UnreadKey, flow_settings, process_settings, unread
from mm2.mirror.topics.config_sync import ConfigDifference
from mm2.observer.curves.history import History
from mm2.observer.curves.long_term import CurveSource, LongTermHistory
from mm2.observer.views import Snapshot


@dataclass(frozen=True)
class Settings:
    """The configuration in effect, and unknown keys.

    Sections are those of the process (name "") and of each flow (``A->B``).
    """

    sections: Mapping[str, Sequence[SettingsSection]]
    unread: Sequence[UnreadKey] = ()

    @classmethod
    def of(cls, config: MirrorMakerConfig, file: Path) -> Settings:
        """The configuration in effect, with line numbers as long as the file still matches it."""
        lines: Mapping[str, int] = {}
        with contextlib.suppress(UnreadableFile, ConfigException):
            text = read_text(file)
            if parse_properties(text, source=str(file)) == config.originals:
                lines = property_lines(text, source=str(file))
        return cls(
            {
                "": [process_settings(config, lines)],
                **{str(pair): flow_settings(config, pair, lines) for pair in config.cluster_pairs()},
            },
            unread(config, lines),
        )


@dataclass(frozen=True)
class PageData:
    """The functions that return the data. They run on separate threads and may block for a moment.

    ``history`` has the values of the last day, ``long_term`` older ones, if a Prometheus is configured. ``differences`` compares the configs of a topic of a flow with those of its remote
    topic; it raises KafkaFailure.
    """

    snapshot: Callable[[], Snapshot]
    settings: Callable[[], Settings]
    history: History = field(default_factory=History)
    differences: Callable[[str, str, str], Sequence[ConfigDifference]] = lambda _flow, _topic, _remote: ()
    long_term: LongTermHistory | None = None

    @property
    def curves(self) -> CurveSource:
        """The curves of pages."""
        return CurveSource(self.history, self.long_term)
