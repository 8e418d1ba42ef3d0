"""The fuzzing loop: passes damaged bytes to a target, as fast as one process can, and detects hangs and crashes."""

from __future__ import annotations

import itertools
import mmap
import random
import resource
import signal
import struct
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import get_context
from typing import Any, Final

from tests.fuzz.mutation import Mutator, seal
from tests.fuzz.targets import REFUSALS, TARGETS, Target

HANG_S: Final = 20.0  # of CPU time, for one example
_MEMORY_BYTES: Final = 4 << 30
_GUARDED: Final = 512  # examples between two reads of the clock
_SHELF_BYTES: Final = 1 << 20
_MAX_FINDINGS: Final = 5
_STOP_AFTER: Final = 4096  # bytes: splicing must not let examples grow


@dataclass(frozen=True)
class Finding:
    """Bytes with an unexpected result, and the result."""

    target: str
    data: bytes
    what: str


@dataclass
class Tally:
    """``read``: examples that were decoded in spite of the damage; the others were rejected as expected."""

    target: str
    examples: int = 0
    read: int = 0
    findings: list[Finding] = field(default_factory=list)


class _Hang(BaseException):
    """Raised after the time limit; no target may catch it."""


def target_of(name: str) -> Target:
    """The target of that name."""
    return next(target for target in TARGETS if target.name == name)


def examples(target: Target, seed: int) -> Iterator[bytearray]:
    """Endless damaged bytes for a target; first the unchanged seeds."""
    rng = random.Random(f"{target.name} {seed}")
    seeds = target.seeds()
    yield from map(bytearray, seeds)
    mutator = Mutator(seeds, rng)
    while True:
        data = mutator.next()
        if target.sealed and rng.random() < 0.7:
            seal(data)
        if data:
            yield data[:_STOP_AFTER]


def fuzz(target: Target, count: int, seed: int, shelf: mmap.mmap | None = None) -> Tally:
    """Run `count` examples; the current one is stored on the ``shelf`` in case this process crashes."""
    tally = Tally(target.name)
    source = examples(target, seed)
    with _clock():
        while tally.examples < count and len(tally.findings) < _MAX_FINDINGS:
            signal.setitimer(signal.ITIMER_PROF, HANG_S)
            for data in itertools.islice(source, min(_GUARDED, count - tally.examples)):
                tally.examples += 1
                if shelf is not None:
                    shelf[: len(data) + 4] = struct.pack(">I", len(data)) + data
                before = bytes(data)
                try:
                    tally.read += target.run(data)
                except REFUSALS:
                    pass
                except _Hang:
                    tally.findings.append(Finding(target.name, before, f"no end after {HANG_S} s"))
                except Exception:  # noqa: BLE001 (this is what is looked for)
                    tally.findings.append(Finding(target.name, before, traceback.format_exc()))
    return tally


@contextmanager
def _clock() -> Iterator[None]:
    def ring(number: int, frame: Any) -> None:
        raise _Hang

    before = signal.signal(signal.SIGPROF, ring)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


class Apart:
    """`fuzz` in a separate process with limited memory; its crash is a finding, too."""

    def __init__(self, target: Target, count: int, seed: int) -> None:
        self._target = target
        self._shelf = mmap.mmap(-1, _SHELF_BYTES)
        context = get_context("fork")  # nothing here has threads
        self.answer, sender = context.Pipe(duplex=False)
        self._process = context.Process(target=self._work, args=(sender, count, seed))
        self._process.start()
        sender.close()

    def _work(self, sender: Any, count: int, seed: int) -> None:
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
        sender.send(fuzz(self._target, count, seed, self._shelf))

    def result(self) -> Tally:
        """Wait for the result; `answer` becomes readable when it is available."""
        try:
            tally: Tally = self.answer.recv()
        except EOFError:
            self._process.join()
            (size,) = struct.unpack_from(">I", self._shelf)
            what = f"the process ended with {self._process.exitcode}"
            tally = Tally(self._target.name, findings=[Finding(self._target.name, self._shelf[4 : 4 + size], what)])
        self._process.join()
        self._shelf.close()
        return tally
