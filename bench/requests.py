"""The number of requests that a broker has answered, from its JMX metrics."""

import subprocess
from pathlib import Path

from bench.errors import BenchFailed
from mm2.sandbox.java import java_executable

_SOURCE = Path(__file__).parent / "java" / "RequestCounts.java"


def request_counts(pid: int) -> dict[str, int]:
    """Requests by name (`Fetch`: those of consumers and followers) since the start of the broker with this process id.

    Raises BenchFailed when its JVM does not answer.
    """
    done = subprocess.run(
        [java_executable(), "-XX:TieredStopAtLevel=1", str(_SOURCE), str(pid)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    if done.returncode:
        raise BenchFailed(f"the metrics of broker {pid} cannot be read: {done.stderr.strip()[-300:]}")
    rows = (line.split() for line in done.stdout.splitlines())
    return {name: int(count) for name, count in rows}
