"""The faults as rules of a Hypothesis state machine, which shrinks a failing schedule."""

from __future__ import annotations

from contextlib import AbstractContextManager

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from tests.simulation.cluster import Options
from tests.simulation.oracle import Violation
from tests.simulation.scenario import FAMILIES, Profile, Scenario, simulated
from tests.simulation.world import World

_OLD_MS = 30 * 86_400_000
FAULTS = tuple(name for family in FAMILIES.values() for name in family)


class Faults(RuleBasedStateMachine):
    """Hypothesis chooses the faults and the time between them; the seed determines their details."""

    def __init__(self) -> None:
        super().__init__()
        self._simulation: AbstractContextManager[World] | None = None

    @initialize(
        seed=st.integers(0, 1 << 16),
        is_old=st.booleans(),
        read_committed=st.booleans(),
        release=st.sampled_from(["2.8", "3.7", "4.1"]),
        source_release=st.sampled_from(["2.6", "3.7", "4.1"]),
    )
    def begin(self, seed: int, is_old: bool, read_committed: bool, release: str, source_release: str) -> None:
        """Start the flow."""
        target = Options(release=release, check_interval_s=1.0, lag_time_s=2.0, hold_high_watermark=release == "4.1")
        source = Options(release=source_release, lag_time_s=2.0, min_isr=1)
        profile = Profile(
            (),
            source,
            target,
            age_ms=(_OLD_MS,) if is_old else (0,),
            read_committed=read_committed,
            transactions=read_committed,
            batch_s=4.0,
            request_timeout_ms=5_000,
            produce_every_s=0.05,
        )
        self._simulation = simulated(seed)
        self.world = self._simulation.__enter__()
        self.scenario = Scenario(self.world, profile)
        self.world.dial.append(self.scenario.network.dial)  # type: ignore[attr-defined]
        self.scenario.setup()

    @rule(fault=st.sampled_from(FAULTS), seconds=st.sampled_from([0.0, 0.1, 1.0, 4.0]))
    def strike(self, fault: str, seconds: float) -> None:
        """Inject one fault and let time pass."""
        getattr(self.scenario, fault)()
        self.world.run(self.world.now + seconds)

    @rule(seconds=st.sampled_from([0.5, 3.0, 12.0]))
    def wait(self, seconds: float) -> None:
        """Let time pass."""
        self.world.run(self.world.now + seconds)

    def teardown(self) -> None:
        """Remove all faults and compare both clusters."""
        if self._simulation is None:
            return
        failed: Violation | None = None
        try:
            self.scenario.finish()
        except Violation as violation:
            failed = violation
        for process in self.scenario.driver.alive():
            process.kill()
        self._simulation.__exit__(None, None, None)
        if failed is not None:
            raise failed
