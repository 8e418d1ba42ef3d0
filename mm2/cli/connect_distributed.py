"""connect-distributed: a Connect worker in distributed mode (Kafka's ConnectDistributed).

Exit codes: see :mod:`mm2.cli.connect_process`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

from mm2.cli.connect_process import CLUSTER, Program, WorkerNode, run_program, with_copying
from mm2.config.keys.worker_keys import WorkerConfig
from mm2.connect.node import Node
from mm2.connect.plugins import Plugins
from mm2.connect.rest.binding import Binding


def make_node(props: Mapping[str, str], plugins: Plugins, binding: Binding) -> WorkerNode:
    """Create the worker from its settings. Raises ConfigException, ConnectError."""
    return with_copying(
        props,
        lambda resources: Node(
            WorkerConfig(props),
            plugins,
            worker_id=binding.worker_id,
            cluster_name=CLUSTER,
            rest_url=binding.advertised_url,
            resources=resources,
        ),
    )


PROGRAM = Program(
    name="connect-distributed",
    description="Runs a Kafka Connect worker that shares connectors and tasks with the other workers of its group.id.",
    make_node=make_node,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run until a signal arrives; returns the exit code."""
    return run_program(PROGRAM, arguments)


if __name__ == "__main__":
    sys.exit(main())
