"""connect-mirror-maker: replicates Kafka clusters as configured in MirrorMaker 2's properties file.

Exit codes: 0 stopped by SIGTERM or Ctrl-C (and --help, --version), 255 bad usage or unreadable file, 2 bad
configuration or unreachable target, 3 start failed, 1 a flow failed later.

The file is watched, and also read at SIGHUP: flows and settings change while the process runs (`mm2.mirror.process.maker`).
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

import structlog

from mm2 import __version__
from mm2.allocator import collect_less_often, use_one_arena
from mm2.cli.common.option_sources import SourcedParser, origins_in
from mm2.cli.logs import add_log_options, configure_logging
from mm2.cli.served import Served
from mm2.cli.signals import ask_at_hangup, exit_in, stop_at_signals
from mm2.config.configdef import ConfigException
from mm2.config.files.java_options import ineffective_variables
from mm2.config.files.properties import UnreadableFile
from mm2.config.mirrormaker import MirrorMakerConfig
from mm2.config.unread import unread_message
from mm2.connect.api import ConnectError
from mm2.copy.driver.given_spark import submitted_context
from mm2.kafka.errors import KafkaFailure
from mm2.mirror.process.config_file import ConfigFile
from mm2.mirror.process.maker import FlowFailed, MirrorMaker
from mm2.observer.curves.prometheus_settings import PrometheusSettings

log = structlog.get_logger(__name__)

EXIT_STOPPED: Final = 0
EXIT_DIED: Final = 1
EXIT_BAD_CONFIG: Final = 2
EXIT_NOT_STARTED: Final = 3
EXIT_USAGE: Final = 255

#: A stop must finish within 15 s; what takes longer is abandoned shortly before.
STOP_S: Final = 13.0
_LAST_RESORT_S: Final = 14.5

#: More than a round over the topics and groups of a large flow makes.
_NEW_OBJECTS: Final = 100_000


class _MirrorMakerParser(SourcedParser):
    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        sys.stderr.write(f"{self.prog}: {message}\n")
        raise SystemExit(EXIT_USAGE)


def parser() -> Any:
    """The command line."""
    made = _MirrorMakerParser(
        prog="connect-mirror-maker",
        description="Replicates Kafka clusters: topics, configs, ACLs, consumer group offsets.",
    )
    made.add_argument("config", metavar="mm2.properties", type=Path, help="MirrorMaker 2's properties file")
    made.add_argument(
        "--clusters",
        metavar="ALIAS",
        nargs="+",
        help="run only the flows to these clusters (default: all); run it near the target",
    )
    add_log_options(made)
    made.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Run until a signal arrives or a flow fails; returns the exit code."""
    options = parser().parse_args(arguments)
    use_one_arena()
    collect_less_often(_NEW_OBJECTS)
    configure_logging(options.log_format, options.log_level)
    stopping = stop_at_signals()
    file = ConfigFile(options.config, ask_at_hangup(stopping))
    try:
        maker, served = set_up(file, options.clusters, stopping, submitted_context)
    except UnreadableFile as error:
        return _refused(error, EXIT_USAGE, stopping)
    except (ConfigException, ConnectError, KafkaFailure) as error:
        return _refused(error, EXIT_BAD_CONFIG, stopping, origins_in(options, str(error)))
    except Exception:
        log.exception("Cannot set MirrorMaker up.")
        return EXIT_BAD_CONFIG
    return _run(maker, stopping, file, served)


def set_up(
    file: ConfigFile,
    clusters: Sequence[str] | None,
    stopping: threading.Event,
    context_for: Callable[[Mapping[str, str]], Any],
) -> tuple[MirrorMaker, Served]:
    """The MirrorMaker of the file, which is not started, and what it serves. ``context_for`` returns the SparkContext to use for the
    ``spark.*`` settings of the file; None: it starts its own. Raises UnreadableFile, and what `MirrorMaker` raises.
    """
    config = MirrorMakerConfig(file.load())
    for key, nearest in config.unread_keys():
        log.warning("%s", unread_message(file.path, key, nearest))
    for one in (*config.ineffective_keys(clusters), *ineffective_variables()):
        log.warning("%s", one)
    if config.disabled_message:
        log.warning("%s", config.disabled_message)
    served = Served(file.path, PrometheusSettings.of(config.rest_props()))
    context = context_for(config.spark_props())
    served.maker = MirrorMaker(
        config, clusters, stopping=stopping, apps=served.apps, file=file.path, spark_context=context
    )
    return served.maker, served


def _run(maker: MirrorMaker, stopping: threading.Event, file: ConfigFile, served: Served) -> int:
    code = EXIT_STOPPED
    try:
        maker.start()
        served.start()
        maker.wait(stopping, file)
    except FlowFailed as failure:
        log.error("%s", failure)  # noqa: TRY400 - the herder has logged the traceback
        code = EXIT_DIED if failure.started else EXIT_NOT_STARTED
    except Exception as error:
        log.error("MirrorMaker could not be started: %s", error, exc_info=error)  # noqa: TRY400 - with a message
        code = EXIT_NOT_STARTED
    exit_in(_LAST_RESORT_S, code)
    served.stop()
    maker.stop(STOP_S)
    log.info("Stopped.")
    return code


def _refused(error: Exception, code: int, stopping: threading.Event, hint: str = "") -> int:
    if stopping.is_set():
        return EXIT_STOPPED
    log.error("%s%s", error, hint)
    log.debug("The error in full.", exc_info=error)
    return code


if __name__ == "__main__":
    sys.exit(main())
