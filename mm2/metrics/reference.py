"""Generates docs/reference/metrics.md from the descriptions: `python -m mm2.metrics.reference`. A test compares the two."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from mm2.metrics.connect import CONNECT_METRICS
from mm2.metrics.flows import FLOW_METRICS
from mm2.metrics.metric import Metric
from mm2.metrics.mirror import MIRROR_METRICS

FILE: Final = Path("docs/reference/metrics.md")

_HEAD: Final = """\
# Metrics

`GET /metrics` on the REST port of connect-mirror-maker (all flows of the process), connect-distributed and connect-standalone,
in Prometheus's text format, or as OpenMetrics for a scraper that accepts it. The scraper needs the role metrics
([rest-access](../how-to/rest-access.md#log-in)). This page is generated from the descriptions in `mm2/metrics`
(`python -m mm2.metrics.reference`); a test compares it.

- **Unknown values are absent**, never 0: add `absent()` to rules that alert on a value. Exceptions: the metrics of parts that should run and do not are 0
  (`mm2_task_up`, `mm2_connector_up`, `mm2_flow_cluster_up`, `mm2_spark_up`), and these series exist as long as they are configured.
- **Lag is computed by the observer, not by clients**: positions are those of the ledger on the target, end offsets are read from the
  source. So all partitions are included, whichever process copies them, and also those that are no longer copied. `mm2_copied_…`,
  latencies, batches and micro-batches are those of the process.
- **One observation per second** serves all scrapes and the dashboard. It starts with the first of them and ends three minutes after the
  last. While a cluster does not answer, its values stay, and `mm2_flow_cluster_up` is 0.
- **Seconds at risk**: the observer records when the end of a partition passed an offset, so the age of missing records is known to the second
  without reading them. A backlog from before the first observation has the age of the timestamp of its first batch, which is
  fetched (at most 32 batches and 4 MB a second). A timestamp of 0 or more than an hour in the future is ignored; the age then counts from
  the first observation.
- **`metrics.cardinality`** in the file: `full` has all partitions; `topic` and `flow` have sums (maximum of ages), with empty labels `topic`
  and `partition`, which Prometheus treats as absent. Partitions that are neither RUNNING nor CATCHING_UP have `mm2_partition_state`
  with each setting.
- **Cost** with 10,000 partitions on the busy machine of [performance](../explanation/performance.md): a snapshot takes 15 ms of CPU time when nothing changes, 25 ms when a
  thousand partitions change, 150 ms when all do; a scrape 1.9 s and 12.6 MB with `full` (130,000 lines), 70 ms with `topic` (500
  topics), 10 ms with `flow`. Counting takes 0.6 µs per record batch.
- In a MirrorMaker process Connect's metrics have the labels `source` and `target` of the flow too, because the connectors of all flows have
  the same names.
- The same values as JSON: `GET /overview`, `/overview/{source}/{target}`, and by pages `…/partitions` and `…/groups` (`search`,
  `state`, `order`, `descending`, `offset`, `limit`).
"""

_CONNECT: Final = """
## Connect Prometheus

1. Give Prometheus a user that may read metrics and nothing else. In `mm2.properties`:

   ```properties
   rest.extension.classes = org.apache.kafka.connect.rest.basic.auth.extension.BasicAuthSecurityRestExtension
   java.security.auth.login.config = /etc/mm2/login.conf
   rest.role.metrics = User:prometheus
   rest.role.admin = User:operator
   ```

   As soon as one `rest.role.*` key is set, users without a role have no access: name the operators, too.
2. `/etc/mm2/login.conf` names the file with the passwords, and `mm2 hash-password prometheus >> /etc/mm2/credentials` adds a line to it:

   ```text
   KafkaConnect {
     org.apache.kafka.connect.rest.basic.auth.extension.PropertyFileLoginModule required file="/etc/mm2/credentials";
   };
   ```

3. Use `conf/prometheus/prometheus.yml`, or copy its scrape job, its `basic_auth` and its `rule_files` into yours. `alerts.yml` beside it has the
   alerts ([runbooks](../how-to/runbooks/README.md)).
4. With the Prometheus Operator, uncomment `podmonitor.yaml` in `conf/kubernetes/kustomization.yaml`, and put the groups of `alerts.yml` into the
   `spec` of a PrometheusRule.

A client certificate or a token of an identity provider can take the place of the password ([rest-access](../how-to/rest-access.md#log-in)).
"""

_STRIMZI: Final = """
## Strimzi's dashboard for MirrorMaker 2

Strimzi's `strimzi-kafka-mirror-maker-2.json` works unchanged with a scrape config that sets the labels of Strimzi's PodMonitor
(`strimzi_io_cluster`, `kubernetes_pod_name`, …). Panels about a JVM stay empty; panels about containers use the cluster's exporters. Of
Strimzi's second dashboard, for its own metrics reporter, only MirrorMaker's own metrics exist here.
"""


def page() -> str:
    """The whole page."""
    parts = [
        _HEAD,
        "\n## Flows\n\n",
        _table(FLOW_METRICS),
        "\n## MirrorMaker 2's own\n\n",
        (
            "Named as by the usual rules of the JMX exporter (spec: KIP-382, KIP-1280). `metric.names.formats` of the flow "
            "selects them: `legacy` (default) the first, `new` the second, `legacy,new` both. `topic` is the name on the target. Checkpoint "
            "latencies exist for groups whose checkpoints this process has written; with less than full cardinality they are aggregated "
            "by group or flow. The offsets of a group on both clusters are in `mm2_group_…`.\n\n"
        ),
        _table(MIRROR_METRICS),
        "\n## Kafka Connect's\n\n",
        (
            "Named as by the usual rules of the JMX exporter. Rates are over the last minute, between scrapes; averages, "
            "maximum values and percentages are since the task or worker started, where Java uses a sampling window. Texts (versions, "
            "classes, the leader's URL) are not exported as metrics.\n\n"
        ),
        _table(CONNECT_METRICS),
        (
            "\n## The process\n\n`process_…`, as exported by prometheus-client: CPU seconds, memory, file descriptors, start time; of the "
            "main process, not of Spark's JVM and workers.\n"
        ),
        _CONNECT,
        _STRIMZI,
    ]
    return "".join(parts)


def _table(metrics: Iterable[Metric]) -> str:
    """One list for the metrics with the same labels. A description that has been given is not repeated."""
    by_labels: dict[tuple[str, ...], list[Metric]] = {}
    for one in metrics:
        by_labels.setdefault(tuple(one.labels), []).append(one)
    described: dict[str, str] = {}
    parts = []
    for labels, rows in by_labels.items():
        names = ", ".join(f"`{label}`" for label in labels)
        parts.append(f"Labels {names}:\n\n" if labels else "Without labels:\n\n")
        for one in rows:
            text = f"as `{described[one.help]}`" if one.help in described else one.help
            described.setdefault(one.help, one.name)
            parts.append(f"- `{one.name}` ({one.kind}): {text}\n")
        parts.append("\n")
    return "".join(parts[:-1])


if __name__ == "__main__":
    FILE.write_text(page(), encoding="utf-8")
    sys.stdout.write(f"{FILE} is written.\n")
