"""connect-standalone: a standalone Connect worker, with connectors from the command line (Kafka's ConnectStandalone).

Exit codes: see :mod:`mm2.cli.connect_process`; 3 also if a connector cannot be created.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import structlog

from mm2.cli.connect_process import CLUSTER, Program, WorkerNode, run_program, with_copying
from mm2.config.configdef import ConfigException
from mm2.config.files.properties import parse_properties
from mm2.config.keys.worker_keys import StandaloneConfig
from mm2.connect.api import ConnectError
from mm2.connect.errors import MalformedBody
from mm2.connect.herder.interface import Herder
from mm2.connect.herder.standalone import StandaloneHerder
from mm2.connect.node import StandaloneNode
from mm2.connect.plugins import Plugins
from mm2.connect.rest.binding import Binding
from mm2.connect.rest.request_values import CreateConnectorRequest, create_request_of, parse_json, string_map_of

log = structlog.get_logger(__name__)

_NAME = "name"


def make_node(props: Mapping[str, str], plugins: Plugins, binding: Binding) -> WorkerNode:
    """Create the worker from its settings. Raises ConfigException, ConnectError."""

    def make(resources: Mapping[str, Any]) -> WorkerNode:
        return StandaloneNode(
            StandaloneConfig(props),
            plugins,
            worker_id=binding.worker_id,
            cluster_name=CLUSTER,
            resources=resources,
        )

    return with_copying(props, make)


def create_connectors(herder: Herder, files: Sequence[Path]) -> None:
    """Create the connectors of the files in order. Raises ConfigException, or the error of the creation."""
    for file in files:
        wanted = read_connector_file(file)
        created = herder.put_connector_config(
            wanted.name, wanted.config, allow_replace=False, target_state=wanted.initial_state
        )
        try:
            created.result()
        except Exception as error:
            raise ConnectError(f"Failed to create the connector of {file}: {error}") from error
        log.info("Created connector.", connector=wanted.name, file=str(file))
    if isinstance(herder, StandaloneHerder):
        herder.ready()


def read_connector_file(file: Path) -> CreateConnectorRequest:
    """Read a connector's configuration. Raises ConfigException with file and field.

    The formats are tried in this order: a JSON map of strings, a JSON object as in ``POST /connectors`` (unknown fields
    are ignored), properties.
    """
    try:
        content = file.read_bytes()
    except OSError as error:
        raise ConfigException(f"Cannot read {file}: {error.strerror}.") from error
    try:
        value = parse_json(content, numbers_as_text=True)
    except MalformedBody:
        value = None
    if not isinstance(value, Mapping):
        return _of_map(file, dict(parse_properties(content.decode("latin-1"), source=str(file))))
    try:
        return _of_map(file, string_map_of(value, str(file)))
    except MalformedBody:
        pass
    known = {key: value[key] for key in ("name", "config", "initial_state") if key in value}
    try:
        wanted = create_request_of(known)
    except MalformedBody as error:
        raise ConfigException(f"{file}: {error}.") from error
    included = wanted.config.get(_NAME)
    if included is not None and included != wanted.name:
        raise ConfigException(
            f"Connector name configuration in 'config' doesn't match the one specified in 'name' at '{file}'"
        )
    return replace(wanted, config={**wanted.config, _NAME: wanted.name})


def _of_map(file: Path, config: Mapping[str, str | None]) -> CreateConnectorRequest:
    name = config.get(_NAME)
    if name is None:
        raise ConfigException(f"Connector configuration at '{file}' is missing the mandatory '{_NAME}' configuration")
    return CreateConnectorRequest(name, dict(config))


PROGRAM = Program(
    name="connect-standalone",
    description="Runs a standalone Kafka Connect worker: connector configurations are kept in memory, source offsets "
    "in a file.",
    make_node=make_node,
    files_help="connectors to create: properties files, or JSON as for POST /connectors",
    after_start=create_connectors,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run until a signal arrives; returns the exit code."""
    return run_program(PROGRAM, arguments)


if __name__ == "__main__":
    sys.exit(main())
