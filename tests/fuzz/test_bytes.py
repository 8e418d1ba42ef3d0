"""A short run of the loop over every target: inputs are rejected or decoded. `bin/fuzz` takes longer."""

from __future__ import annotations

import contextlib

import pytest

from mm2.kafka.errors import BrokerFailure, CorruptBatch
from tests.fuzz.loop import examples, fuzz
from tests.fuzz.mutation import seal
from tests.fuzz.targets import TARGETS, Target


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_any_bytes_raise_only_documented_errors(target: Target) -> None:
    tally = fuzz(target, 2000, seed=1)
    assert not tally.findings, f"{tally.findings[0].what}\n{tally.findings[0].data.hex()}"
    assert 0 < tally.read < tally.examples, "some of it makes sense, some of it not"


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_the_seeds_are_valid_inputs(target: Target) -> None:
    source = examples(target, 1)
    for _ in target.seeds():
        with contextlib.suppress(BrokerFailure):  # a response may contain one
            assert target.run(next(source))


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_the_same_seed_creates_the_same_examples(target: Target) -> None:
    def first(seed: int) -> list[bytes]:
        source = examples(target, seed)
        return [bytes(next(source)) for _ in range(200)]

    assert first(5) == first(5) != first(6)


def test_an_unexpected_exception_is_found() -> None:
    def surprised(data: bytearray) -> bool:
        if data[:1] == b"\xff":
            raise KeyError
        raise CorruptBatch

    tally = fuzz(Target("test", lambda: [b"\x00" * 30], surprised), 20_000, seed=1)
    assert tally.findings
    assert all("KeyError" in found.what and found.data[:1] == b"\xff" for found in tally.findings)


def test_sealing_keeps_valid_bytes() -> None:
    for target in TARGETS:
        if target.sealed:
            for seed in target.seeds():
                data = bytearray(seed)
                seal(data)
                assert data == seed
