"""`bin/alarms`: inject five faults and print, as a table for the docs, what each interface reports and how soon."""

import sys
from collections.abc import Sequence
from pathlib import Path

import configargparse

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # started with -P, which leaves our own folder out

from tests.endurance.alarms import ROWS, RowResult, rig, run_row

_HEAD = """| row | fault | dashboard | `mm2 status` | `/metrics` | alerts | healthy again |
| --- | --- | --- | --- | --- | --- | --- |"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code: 0 an alert detects each fault within 30 s, 1 a fault is not detected, 130 interrupted."""
    parser = configargparse.ArgumentParser(
        prog="bin/alarms",
        description="Injects five faults one after another (killed process, killed broker, deleted records, corrupt batch, revoked "
        "permission) and prints what the dashboard, mm2 status, /metrics and the alerts of conf/prometheus report.",
        auto_env_var_prefix="MM2_ALARMS_",
    )
    parser.add_argument(
        "--only", nargs="+", choices=list(ROWS), default=list(ROWS), help="only these rows (default: all)"
    )
    options = parser.parse_args(arguments)
    detected = True
    try:
        with rig() as made:
            sys.stdout.write(f"{_HEAD}\n")
            for row in options.only:
                result = run_row(made, row)
                sys.stdout.write(f"{_line(result)}\n")
                sys.stdout.flush()
                detected = detected and result.is_detected
    except KeyboardInterrupt:
        return 130
    return 0 if detected else 1


def _line(result: RowResult) -> str:
    alerts = "; ".join(
        f"{name} "
        + ", ".join(_since(word, at) for word, at in zip(("pending", "firing"), times, strict=True) if at is not None)
        for name, times in sorted(result.alerts.items(), key=lambda one: min(at for at in one[1] if at is not None))
    )
    status = f"after {result.status_s:.0f} s: {result.status}"
    healthy = "-" if result.healthy_s is None else f"after {result.healthy_s:.0f} s"
    page = f"after {result.page_s:.0f} s: {result.page}".replace("|", "\\|")
    return f"| {result.row} | {result.done} | {page} | {status} | {result.metrics} | {alerts} | {healthy} |"


def _since(word: str, at_s: float) -> str:
    return f"{word} after {at_s:.0f} s"


if __name__ == "__main__":
    sys.exit(main())
