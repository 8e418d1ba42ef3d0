"""`bin/alarms`: inject five faults and print, as a table for the docs, what each interface reports and how soon."""

import sys
from collections.abc import Sequence
from pathlib import Path

import configargparse

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # started with -P, which leaves our own folder out

from tests.endurance.alarms import ROWS, Heard, play, rig

_HEAD = """| row | what was done | dashboard | `mm2 status` | `/metrics` | alerts | well again |
| --- | --- | --- | --- | --- | --- | --- |"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code: 0 an alert tells of each fault within 30 s, 1 of one none does, 130 interrupted."""
    parser = configargparse.ArgumentParser(
        prog="bin/alarms",
        description="Kills a process and a broker, deletes records, damages a batch, takes a right away, one after the other, and "
        "writes down what the dashboard, mm2 status, /metrics and the alerts of conf/prometheus say.",
        auto_env_var_prefix="MM2_ALARMS_",
    )
    parser.add_argument("--only", nargs="+", choices=list(ROWS), default=list(ROWS), help="only these (default: all)")
    options = parser.parse_args(arguments)
    told = True
    try:
        with rig() as made:
            sys.stdout.write(f"{_HEAD}\n")
            for row in options.only:
                heard = play(made, row)
                sys.stdout.write(f"{_line(heard)}\n")
                sys.stdout.flush()
                told = told and heard.is_told
    except KeyboardInterrupt:
        return 130
    return 0 if told else 1


def _line(heard: Heard) -> str:
    alerts = "; ".join(
        f"{name} "
        + ", ".join(_since(word, at) for word, at in zip(("pending", "firing"), times, strict=True) if at is not None)
        for name, times in sorted(heard.alerts.items(), key=lambda one: min(at for at in one[1] if at is not None))
    )
    status = f"after {heard.status_s:.0f} s: {heard.status}"
    well = "-" if heard.well_s is None else f"after {heard.well_s:.0f} s"
    page = f"after {heard.page_s:.0f} s: {heard.page}".replace("|", "\\|")
    return f"| {heard.row} | {heard.done} | {page} | {status} | {heard.metrics} | {alerts} | {well} |"


def _since(word: str, at_s: float) -> str:
    return f"{word} after {at_s:.0f} s"


if __name__ == "__main__":
    sys.exit(main())
