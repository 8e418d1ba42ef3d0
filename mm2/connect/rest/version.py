"""What a worker says it is."""

from __future__ import annotations

from typing import Any, Final

from mm2 import __version__

#: The Kafka whose behaviour this is; tools look at it before they use what newer workers can do.
KAFKA_VERSION: Final = "4.3.0"


def server_info(kafka_cluster_id: str) -> dict[str, Any]:
    """``{"version", "commit", "kafka_cluster_id"}``; the commit tells which program it really is."""
    return {"version": KAFKA_VERSION, "commit": f"mm2-{__version__}", "kafka_cluster_id": kafka_cluster_id}
