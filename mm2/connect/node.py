"""Creates a worker from its settings: clusters, stores, worker, herder (ConnectDistributed of Java)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from mm2.config.keys.worker_keys import StandaloneConfig, WorkerConfig
from mm2.connect.group.protocol import URL_NOT_USED
from mm2.connect.herder.connector_offsets import ConnectorOffsetsAccess, KafkaSourceOffsets, StoredOffsets
from mm2.connect.herder.distributed import DistributedHerder
from mm2.connect.herder.standalone import StandaloneHerder
from mm2.connect.herder.validation import ConnectorValidation
from mm2.connect.plugins import Plugins
from mm2.connect.runtime.exactly_once_settings import ExactlyOnceSupport, leader_transactional_id
from mm2.connect.runtime.worker import Worker
from mm2.connect.stores.config_store import MemoryConfigStore
from mm2.connect.stores.internal_topic import InternalTopic
from mm2.connect.stores.kafka_config_store import KafkaConfigStore, LeaderWrites
from mm2.connect.stores.kafka_offset_store import KafkaOffsetStore
from mm2.connect.stores.kafka_status_store import KafkaStatusStore
from mm2.connect.stores.offset_store import FileOffsetStore
from mm2.connect.stores.status_store import MemoryStatusStore
from mm2.kafka.client.cluster import Cluster
from mm2.kafka.settings.client_settings import ClientSettings

#: Timeout for creating and reading internal topics (Java's default.api.timeout.ms).
START_TIMEOUT_S = 60.0


def _worker_clusters(config: WorkerConfig, worker_id: str, cluster_name: str) -> dict[str, Cluster]:
    """The worker's connections by purpose, each with Java's client id; "leader" only for exactly-once support."""
    props = {key: str(value) for key, value in config.originals.items()}
    group, client = config.str("group.id"), config.str("client.id")
    base = f"{group}-{client}-" if client else f"{group}-"
    client_ids = {
        "configs": f"{base}configs",
        "offsets": f"{base}offsets",
        "statuses": f"{base}statuses",
        "group": client or f"connect-{worker_id}",
    }
    if ExactlyOnceSupport.of(config) is not ExactlyOnceSupport.DISABLED:
        client_ids["leader"] = f"{base}configs-leader"
    return {
        name: Cluster(ClientSettings.from_props(props, client_id=client_id), name=cluster_name)
        for name, client_id in client_ids.items()
    }


def _kafka_stores(
    config: WorkerConfig, clusters: Mapping[str, Cluster], start_timeout_s: float
) -> tuple[KafkaConfigStore, KafkaStatusStore, KafkaOffsetStore]:
    leader_cluster = clusters.get("leader")
    # As in Java the config topic is read with read_committed only if exactly-once support is "enabled": members that
    # see different records at its end could never agree on an assignment. Unlike in Java, the offsets topic is always
    # read with read_committed: after a switch to "disabled" it may contain offsets of transactions that were never
    # committed.
    read_committed = ExactlyOnceSupport.of(config) is ExactlyOnceSupport.ENABLED
    return (
        KafkaConfigStore(
            clusters["configs"],
            InternalTopic.from_config(config, "config.storage."),
            start_timeout_s=start_timeout_s,
            read_committed=read_committed,
            leader_writes=None
            if leader_cluster is None
            else LeaderWrites(leader_cluster, leader_transactional_id(config.str("group.id"))),
        ),
        KafkaStatusStore(
            clusters["statuses"],
            InternalTopic.from_config(config, "status.storage."),
            start_timeout_s=start_timeout_s,
        ),
        KafkaOffsetStore(
            clusters["offsets"],
            InternalTopic.from_config(config, "offset.storage."),
            start_timeout_s=start_timeout_s,
            read_committed=True,
        ),
    )


class Node:
    """A worker with its herder and connections. ``herder`` is the entry point."""

    def __init__(
        self,
        config: WorkerConfig,
        plugins: Plugins,
        *,
        worker_id: str,
        cluster_name: str,
        rest_url: str = URL_NOT_USED,
        rest_namespace: Sequence[str] = (),
        rest_props: Mapping[str, str] | None = None,
        resources: Mapping[str, Any] | None = None,
        log_context: Mapping[str, str] | None = None,
        on_leader_ready: Callable[[DistributedHerder], None] | None = None,
        start_timeout_s: float = START_TIMEOUT_S,
        reports_keys: bool = True,
    ) -> None:
        """Nothing connects before :meth:`check` or ``herder.start()``. Raises ConfigException or ConnectError.

        ``cluster_name`` is the name of the cluster behind ``bootstrap.servers`` in messages; ``rest_namespace`` is the
        path prefix of other workers' REST interfaces, and ``rest_props`` are the settings of their TLS, those of the worker
        if None. ``reports_keys`` as for :class:`Worker`.
        """
        self._clusters = _worker_clusters(config, worker_id, cluster_name)
        config_store, status_store, offset_store = _kafka_stores(config, self._clusters, start_timeout_s)
        worker = Worker(
            worker_id,
            config,
            plugins,
            offset_store,
            cluster_name=cluster_name,
            resources=resources,
            log_context=log_context,
            reports_keys=reports_keys,
        )
        self._cluster_id = ""
        self.herder = DistributedHerder(
            worker,
            config_store,
            status_store,
            self._clusters["group"],
            offsets=ConnectorOffsetsAccess(
                worker,
                KafkaSourceOffsets(worker, offset_store, cluster_name=cluster_name),
                cluster_name=cluster_name,
            ),
            validation=ConnectorValidation(worker, config.str("group.id")),
            cluster_id=lambda: self._cluster_id,
            loading=lambda: offset_store.progress,
            rest_url=rest_url,
            rest_namespace=rest_namespace,
            rest_props=rest_props,
            on_leader_ready=on_leader_ready,
        )

    def check(self, timeout_s: float) -> str:
        """Connect and return the id of the Kafka cluster.

        Raises KafkaFailure when the cluster is unreachable or rejects the client.
        """
        cluster = self._clusters["group"]
        cluster.preflight(timeout_s)
        self._cluster_id = cluster.metadata((), timeout_s=timeout_s).cluster_id or ""
        return self._cluster_id

    def stop(self) -> None:
        """Stop the herder, then close all connections."""
        self.herder.stop()
        for cluster in self._clusters.values():
            cluster.close()


class StandaloneNode:
    """A standalone worker with its herder. ``herder`` is the entry point."""

    def __init__(
        self,
        config: StandaloneConfig,
        plugins: Plugins,
        *,
        worker_id: str,
        cluster_name: str,
        resources: Mapping[str, Any] | None = None,
        log_context: Mapping[str, str] | None = None,
    ) -> None:
        """Nothing connects before :meth:`check`. Raises ConfigException or ConnectError."""
        props = {key: str(value) for key, value in config.originals.items()}
        client_id = props.get("client.id") or f"connect-{worker_id}"
        self._cluster = Cluster(ClientSettings.from_props(props, client_id=client_id), name=cluster_name)
        self._cluster_id = ""
        offset_store = FileOffsetStore(Path(config.str("offset.storage.file.filename")))
        worker = Worker(
            worker_id,
            config,
            plugins,
            offset_store,
            cluster_name=cluster_name,
            resources=resources,
            log_context=log_context,
        )

        def source_offsets(name: str, _props: Mapping[str, str]) -> AbstractContextManager[StoredOffsets]:
            return nullcontext(StoredOffsets(offset_store, name))

        self.herder = StandaloneHerder(
            worker,
            MemoryConfigStore(),
            MemoryStatusStore(),
            offsets=ConnectorOffsetsAccess(worker, source_offsets, cluster_name=cluster_name),
            validation=ConnectorValidation(worker, None),
            cluster_id=lambda: self._cluster_id,
        )

    def check(self, timeout_s: float) -> str:
        """Connect and return the id of the Kafka cluster.

        Raises KafkaFailure when the cluster is unreachable or rejects the client.
        """
        self._cluster.preflight(timeout_s)
        self._cluster_id = self._cluster.metadata((), timeout_s=timeout_s).cluster_id or ""
        return self._cluster_id

    def stop(self) -> None:
        """Stop the herder, then close all connections."""
        self.herder.stop()
        self._cluster.close()
