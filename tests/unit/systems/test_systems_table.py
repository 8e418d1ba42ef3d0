"""Each of the 51 systems of Kafka Connect has a test from outside the process: through REST, topics, the group or the exit code."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
#: The numbers are in the names of tests: `test_a04_…`.
SYSTEMS = {
    1: "`connect-distributed`",
    2: "Properties, ConfigDef, typed settings",
    3: "Keys of workers, connectors and their clients",
    4: "Plugins, isolated loaders, scanning",
    5: "Plugin aliases",
    6: "Cluster id",
    7: "REST: listeners, advertised address",
    8: "REST: admin listeners",
    9: "REST: HTTPS",
    10: "REST: CORS, response headers",
    11: "REST: extensions",
    12: "REST: resources",
    13: "Forwarding of requests",
    14: "Offsets on Kafka",
    15: "Offsets in memory and in a file",
    16: "Statuses on Kafka",
    17: "Statuses in memory",
    18: "Configs on Kafka",
    19: "Configs in memory",
    20: "Propagation of config changes to the herder",
    21: "Commit marker",
    22: "Target states",
    23: "Session key",
    24: "Shared log (KafkaBasedLog)",
    25: "Worker",
    26: "Connector instances",
    27: "Task instances",
    28: "Sink tasks",
    29: "Source tasks",
    30: "Source offset commits",
    31: "Herder thread and tick",
    32: "Startup order",
    33: "Group member",
    34: "Leader and eager assignment",
    35: "Incremental cooperative assignment",
    36: "Triggers of a rebalance",
    37: "Failure detection, rediscovery",
    38: "Serialized requests on one snapshot",
    39: "Status records",
    40: "Config records with references",
    41: "Process lifecycle",
    42: "`connect-standalone`",
    43: "Converters of tasks",
    44: "Internal converters",
    45: "`rest.host.name`, `rest.port`",
    46: "MirrorMaker's driver",
    47: "Herder without REST",
    48: "Command line",
    49: "Context loader for plugin code",
    50: "Offset reader and writer of source tasks",
    51: "Access log, concurrent requests",
}


def test_each_system_has_a_test_that_is_no_unit_test() -> None:
    shown = set()
    for file in (ROOT / "tests").rglob("test_*.py"):
        if not file.is_relative_to(ROOT / "tests" / "unit"):
            for name in re.findall(r"^def (test_\w+)\(", file.read_text(encoding="utf-8"), re.MULTILINE):
                shown |= {int(number) for number in re.findall(r"_a(\d\d)(?=_)", name)}
    assert set(SYSTEMS) - shown == set()
