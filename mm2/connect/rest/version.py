"""Version information of a worker."""

from __future__ import annotations

from typing import Any, Final

from mm2 import __version__

#: The Kafka version whose behaviour this is; tools check it before they use newer features.
KAFKA_VERSION: Final = "4.3.0"


def server_info(kafka_cluster_id: str) -> dict[str, Any]:
    """``{"version", "commit", "kafka_cluster_id"}``; the commit identifies the actual program."""
    return {"version": KAFKA_VERSION, "commit": f"mm2-{__version__}", "kafka_cluster_id": kafka_cluster_id}
