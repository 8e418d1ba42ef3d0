"""Virtual time in one thread: threads of the product are greenlets, scheduled in an order determined by the seed."""

from __future__ import annotations

import concurrent.futures
import gc
import heapq
import random
import sys
import threading as real_threading
import time as real_time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import greenlet

MONOTONIC_BASE = 1_000.0
WALL_BASE = 1_800_000_000.0


class Owner:
    """A copier process or the driver, which run code of the product. ``frozen``: no callback of it runs."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.frozen = False
        self.dead = False
        self.delayed: list[Callable[[], None]] = []  # until it is resumed

    def perform(self, call: Callable[[], None]) -> None:
        """Run a callback of this owner now, or when it resumes; never after it was killed."""
        if self.dead:
            return
        if self.frozen:
            self.delayed.append(call)
        else:
            call()


class Event:
    """An event at a virtual time, unless it is cancelled."""

    __slots__ = ("args", "call", "cancelled")

    def __init__(self, call: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self.call = call
        self.args = args
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class Waiter:
    """A waiting greenlet. `wake` may be called more than once and from any greenlet; the first call counts."""

    def __init__(self, world: World, owner: Owner) -> None:
        self._world = world
        self._greenlet = greenlet.getcurrent()
        self.owner = owner
        self.timer: Event | None = None
        self._over = False

    def wake(self, result: object = True) -> None:
        if not self._over:
            self._over = True
            if self.timer is not None:
                self.timer.cancel()
            self._world.after(0.0, self.owner.perform, lambda: self._resume(result))

    def _resume(self, result: object) -> None:
        self._world.switch(self.owner, self._greenlet, result)


class World:
    """The schedule. ``steps`` counts events and callbacks that were executed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        self.now = 0.0
        self.steps = 0
        self.owner = Owner("outside")
        self.failure: Exception | None = None  # found where the product would catch it; `run` raises it
        self.trace: deque[str] = deque(maxlen=20_000)
        self.echo = False
        self.greenlets: set[greenlet.greenlet] = set()
        self._heap: list[tuple[float, int, Event]] = []
        self._count = 0
        self._hub = greenlet.getcurrent()
        self._over = False

    def monotonic(self) -> float:
        return MONOTONIC_BASE + self.now

    def wall(self) -> float:
        return WALL_BASE + self.now

    def say(self, what: str, **fields: object) -> None:
        """Add a line to the trace."""
        text = f"{self.now:10.4f} {what}" + "".join(f" {name}={value}" for name, value in fields.items())
        self.trace.append(text)
        if self.echo:
            sys.stdout.write(text + "\n")

    def after(self, delay_s: float, call: Callable[..., Any], *args: Any) -> Event:
        """Schedule an event ``delay_s`` seconds from now."""
        event = Event(call, args)
        self._count += 1
        heapq.heappush(self._heap, (self.now + delay_s, self._count, event))
        return event

    def run(self, until: float, stop: Callable[[], bool] | None = None) -> bool:
        """Advance time to that time, or until ``stop`` is true after an event; returns whether it was."""
        heap = self._heap
        while heap and heap[0][0] <= until:
            when, _, event = heapq.heappop(heap)
            if event.cancelled:
                continue
            self.now = max(self.now, when)
            self.steps += 1
            event.call(*event.args)
            if self.failure is not None:
                raise self.failure
            if stop is not None and stop():
                return True
        self.now = max(self.now, until)
        return False

    # -- greenlets in place of threads -----------------------------------------------------------------------------

    def spawn(self, owner: Owner, call: Callable[[], Any]) -> None:
        """Schedule a function that may block."""
        task = greenlet.greenlet(call, self._hub)
        self.greenlets.add(task)
        self.after(0.00002, owner.perform, lambda: self.switch(owner, task))

    def switch(self, owner: Owner, task: greenlet.greenlet, *args: object) -> None:
        before, self.owner = self.owner, owner
        try:
            task.switch(*args)
        finally:
            self.owner = before
        if task.dead:
            self.greenlets.discard(task)

    def block(self, register: Callable[[Waiter], None] | None, timeout_s: float | None) -> bool:
        """Block the current greenlet until the waiter is woken (True) or the timeout expires (False)."""
        if self._over:
            raise greenlet.GreenletExit
        if greenlet.getcurrent() is self._hub:
            message = "a blocking call on an event loop"
            raise RuntimeError(message)
        if timeout_s is not None and timeout_s <= 0 and register is not None:
            return False
        waiter = Waiter(self, self.owner)
        if timeout_s is not None:
            waiter.timer = self.after(max(0.0, timeout_s), waiter.wake, False)
        if register is not None:
            register(waiter)
        return bool(self._hub.switch())

    def sleep(self, seconds: float) -> None:
        self.block(None, seconds)

    def end(self) -> None:
        """Discard all waiting greenlets and events."""
        self._over = True
        self._heap.clear()
        for task in list(self.greenlets):
            if not task.dead:
                task.throw(greenlet.GreenletExit)
        self.greenlets.clear()


class _Time:
    """Replaces the module `time`."""

    CLOCK_BOOTTIME = None  # the world's clock never sleeps

    def __init__(self, world: World) -> None:
        self.monotonic = world.monotonic
        self.perf_counter = world.monotonic
        self.time = world.wall
        self.sleep = world.sleep
        self._world = world

    def time_ns(self) -> int:
        return int(self._world.wall() * 1e9)

    def monotonic_ns(self) -> int:
        return int(self._world.monotonic() * 1e9)

    def __getattr__(self, name: str) -> Any:
        return getattr(real_time, name)


class _Event:
    """Replaces `threading.Event`."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._flag = False
        self._waiters: list[Waiter] = []

    def is_set(self) -> bool:
        return self._flag

    def set(self) -> None:
        self._flag = True
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            waiter.wake()

    def clear(self) -> None:
        self._flag = False

    def wait(self, timeout: float | None = None) -> bool:
        if not self._flag:
            self._world.block(self._waiters.append, timeout)
        return self._flag


class Lock:
    """Replaces `threading.Lock`."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._held = False
        self._waiters: deque[Waiter] = deque()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        deadline = None if timeout < 0 else self._world.monotonic() + timeout
        while self._held:
            left = None if deadline is None else deadline - self._world.monotonic()
            if not blocking or (not self._world.block(self._waiters.append, left) and self._held):
                return False
        self._held = True
        return True

    def release(self) -> None:
        self._held = False
        while self._waiters:
            self._waiters.popleft().wake()

    def locked(self) -> bool:
        return self._held

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class _Thread:
    """Replaces `threading.Thread`."""

    def __init__(
        self,
        world: World,
        target: Callable[..., Any],
        args: tuple[Any, ...] = (),
        name: str = "",
        daemon: bool | None = None,
    ) -> None:
        self.name = name
        self.daemon = daemon
        self._world = world
        self._call = lambda: target(*args)
        self._over = _Event(world)
        self._begun = False

    def start(self) -> None:
        self._begun = True
        self._world.spawn(self._world.owner, self._run)

    def _run(self) -> None:
        try:
            self._call()  # type: ignore[no-untyped-call]
        finally:
            self._over.set()

    def is_alive(self) -> bool:
        return self._begun and not self._over.is_set()

    def join(self, timeout: float | None = None) -> None:
        self._over.wait(timeout)


class _Future(concurrent.futures.Future[Any]):
    """Replaces `concurrent.futures.Future` where one thread waits for another."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def result(self, timeout: float | None = None) -> Any:
        if not self.done() and not self._world.block(lambda waiter: self.add_done_callback(waiter.wake), timeout):
            raise TimeoutError
        return super().result(0)


class _Threading:
    """Replaces the module `threading`."""

    def __init__(self, world: World) -> None:
        self.Event = lambda: _Event(world)
        self.Lock = lambda: Lock(world)
        self.Thread = lambda *args, **kwargs: _Thread(world, *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(real_threading, name)


class _Gc:
    """Replaces the module `gc`: objects that a copier freezes would never be freed."""

    def __getattr__(self, name: str) -> Any:
        return (lambda *_: None) if name in {"freeze", "unfreeze", "collect"} else getattr(gc, name)


class Secrets:
    """Replaces the module `secrets`: equal values in each run of a seed."""

    def __init__(self, world: World) -> None:
        self._random = random.Random(world.seed)

    def token_hex(self, count: int = 16) -> str:
        return self._random.randbytes(count).hex()


@contextmanager
def patched(world: World, *others: tuple[Any, str, Any]) -> Iterator[None]:
    """Replace time and threads in all modules of the product inside the `with` block.

    ``others`` are (module or class, attribute, replacement) to be replaced as well.
    """
    found: list[tuple[Any, str, Any]] = []
    replacements = ((real_time, _Time(world)), (real_threading, _Threading(world)), (gc, _Gc()))
    for name, module in list(sys.modules.items()):
        if name.startswith("mm2."):
            for attribute, value in list(vars(module).items()):
                for original, replacement in replacements:
                    if value is original:
                        found.append((module, attribute, replacement))
                if value is concurrent.futures.Future:
                    found.append((module, attribute, _FutureFactory(world)))
    saved = []
    for place, attribute, replacement in (*found, *others):
        saved.append((place, attribute, vars(place)[attribute]))
        setattr(place, attribute, replacement)
    state = random.getstate()
    random.seed(world.seed)
    try:
        yield
    finally:
        random.setstate(state)
        for place, attribute, value in reversed(saved):
            setattr(place, attribute, value)


class _FutureFactory:
    """`Future[T]()` as well as `Future()`."""

    def __init__(self, world: World) -> None:
        self._world = world

    def __call__(self) -> _Future:
        return _Future(self._world)

    def __getitem__(self, _item: object) -> _FutureFactory:
        return self
