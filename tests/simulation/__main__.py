"""Run the simulation: ``--seed N [--trace]`` for one schedule, ``--steps N`` for many."""

from __future__ import annotations

import argparse
import os
import sys
import time


def say(text: object) -> None:
    """Print to standard output without buffering."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def find_mutations(rule: str, max_steps: int) -> int:
    """Run schedules against each mutation until it is detected. Steps limit it, because a limit in seconds would find less on a slow machine."""
    from tests.simulation.mutations import MUTATIONS  # noqa: PLC0415

    missed = 0
    for mutation in MUTATIONS:
        if rule and rule not in mutation.rule:
            continue
        began, cpu, steps = time.perf_counter(), time.process_time(), 0
        for seed in range(mutation.first_seed, 10**6):
            result = mutation.run(seed)
            steps += result.steps
            if result.violation is not None or steps > max_steps:
                break
        took = (
            f"{time.process_time() - cpu:.1f} s of processor time, {time.perf_counter() - began:.1f} s, {steps} steps"
        )
        if result.violation is None:
            missed += 1
            say(f"NOT FOUND  {mutation.rule}: {mutation.what}: up to seed {seed}, {took}")
        else:
            say(f"found      {mutation.rule}: {mutation.what}: seed {seed}, {took}: {str(result.violation)[:110]}")
    return 1 if missed else 0


def sound_alarms(limit_s: float) -> int:
    """Revert rules so that records are lost or duplicated, and report partitions that do not stop."""
    from tests.simulation.mutations import ALARMS  # noqa: PLC0415

    bad = 0
    for mutation in ALARMS:
        cpu, steps, broken = time.process_time(), 0, 0
        kinds: list[str] = []
        seed = 0
        while time.process_time() - cpu < limit_s:
            seed += 1
            result = mutation.run(seed)
            steps += result.steps
            broken += result.broken
            if result.violation is not None:
                kinds.append(result.violation.kind)
                say(f"  seed {seed}: {str(result.violation)[:300]}")
        bad += len(kinds)
        silent = kinds.count("silent")
        say(
            f"{mutation.rule}: {mutation.what}: {seed} seeds, {steps} steps, {broken} partitions broken, {silent} silent, "
            f"{len(kinds) - silent} other violations"
        )
    return 1 if bad else 0


def run_directed(seeds: int) -> int:
    """Run each schedule of `directed`, `directed_sequences` and `directed_target` over some seeds."""
    from tests.simulation.directed import DIRECTED, direct  # noqa: PLC0415
    from tests.simulation.directed_sequences import SEQUENCES  # noqa: PLC0415
    from tests.simulation.directed_target import TARGET  # noqa: PLC0415

    bad = 0
    for what in (*DIRECTED, *SEQUENCES, *TARGET):
        found = {
            seed: violation for seed in range(1, seeds + 1) if (violation := direct(what, seed).violation) is not None
        }
        bad += len(found)
        say(f"{what.name}: {len(found)} of {seeds} seeds violate an invariant")
        for seed, violation in found.items():
            say(f"  seed {seed}: {violation}")
    return 1 if bad else 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, help="run this schedule only")
    parser.add_argument("--trace", action="store_true", help="print all events of the schedule")
    parser.add_argument("--last", type=int, default=60, help="events to print of a schedule that fails")
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--seeds", type=int, default=10**9, help="at most so many schedules")
    parser.add_argument("--steps", type=int, default=10**12, help="stop after so many steps")
    parser.add_argument("--seconds", type=float, default=1e12, help="stop after so long")
    parser.add_argument("--families", help="only these faults, by comma")
    parser.add_argument("--without", default="", help="no schedules with these faults, by comma")
    parser.add_argument("--keep-going", action="store_true", help="count violations instead of stopping at the first")
    parser.add_argument("--mutations", action="store_true", help="revert each rule of the protocol and find it missing")
    parser.add_argument("--directed", action="store_true", help="run the schedules that are written down")
    parser.add_argument(
        "--alarms", action="store_true", help="revert rules and see that each partition that is hurt stops"
    )
    parser.add_argument("--rule", default="", help="only mutations of this rule")
    arguments = parser.parse_args()
    if arguments.directed:
        return run_directed(min(arguments.seeds, 10))
    if arguments.alarms:
        return sound_alarms(60.0 if arguments.seconds > 1e9 else arguments.seconds)
    if arguments.mutations:
        return find_mutations(arguments.rule, min(arguments.steps, 20_000_000))

    from tests.simulation.scenario import run  # noqa: PLC0415

    families = tuple(arguments.families.split(",")) if arguments.families else None
    if arguments.seed is not None:
        result = run(
            arguments.seed, echo=arguments.trace, families=families, without=tuple(arguments.without.split(","))
        )
        say(
            f"seed {result.seed}: {result.steps} steps, {result.records} records, {result.virtual_s} s, {result.profile.families}"
        )
        if result.violation is not None:
            if not arguments.trace:
                say("\n".join(result.trace[-arguments.last :]))
            say(result.violation)
            return 1
        return 0
    began = time.perf_counter()
    steps = records = bad = 0
    seed = arguments.first_seed
    while seed < arguments.first_seed + arguments.seeds and steps < arguments.steps:
        if time.perf_counter() - began > arguments.seconds:
            break
        result = run(seed, families=families, without=tuple(arguments.without.split(",")))
        steps += result.steps
        records += result.records
        if result.violation is not None:
            bad += 1
            say(f"seed {seed}: {','.join(result.profile.families)}: {result.violation}")
            if not arguments.keep_going:
                break
        seed += 1
    took = time.perf_counter() - began
    say(
        f"{seed - arguments.first_seed} seeds, {steps} steps, {records} records, {bad} violations, {took:.0f} s, {steps / took:.0f} steps/s"
    )
    return 1 if bad else 0


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":
        # The order of sets of strings must be the same each time.
        os.execve(  # noqa: S606
            sys.executable,
            [sys.executable, "-m", "tests.simulation", *sys.argv[1:]],
            {**os.environ, "PYTHONHASHSEED": "0"},
        )
    sys.exit(main())
