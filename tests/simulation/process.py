"""A copier process: an asyncio event loop on virtual time that can be frozen or killed between any two callbacks."""

from __future__ import annotations

import asyncio
import contextvars
import heapq
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

from tests.simulation.network import Network
from tests.simulation.world import Event, Owner, World


class Loop(asyncio.BaseEventLoop):
    """asyncio's own queues and timers; `Process.turn` runs them."""

    def __init__(self, process: Process) -> None:
        super().__init__()
        self._process = process
        self._ready: deque[asyncio.Handle]
        self._scheduled: list[asyncio.TimerHandle]

    def time(self) -> float:
        return self._process.world.monotonic()

    def get_debug(self) -> bool:
        return False

    def _check_closed(self) -> None:
        pass

    def _write_to_self(self) -> None:
        self._process.poke()

    def _call_soon(
        self, callback: Callable[..., Any], args: Any, context: contextvars.Context | None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        self._process.poke()
        return handle

    def call_at(self, when: float, callback: Any, *args: Any, context: Any = None) -> Any:  # type: ignore[override]
        timer = super().call_at(when, callback, *args, context=context)
        self._process.alarm(when)
        return timer

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:  # type: ignore[override]
        del executor
        future = self.create_future()
        process = self._process

        def work() -> None:
            result: Any = None
            error: BaseException | None = None
            try:
                result = func(*args)
            except Exception as failure:  # noqa: BLE001
                error = failure
            process.socket_ready(lambda: _finish(future, result, error))

        process.world.spawn(process, work)
        return future

    def add_reader(self, fd: Any, callback: Any, *args: Any) -> Any:  # type: ignore[override]
        self._process.network.sockets[fd].watch(lambda: callback(*args))

    def remove_reader(self, fd: Any) -> Any:
        socket = self._process.network.sockets.get(fd)
        if socket is not None:
            socket.watch(None)

    def add_writer(self, fd: Any, callback: Any, *args: Any) -> Any:  # type: ignore[override]
        raise NotImplementedError

    def remove_writer(self, fd: Any) -> Any:
        raise NotImplementedError

    async def create_connection(self, protocol_factory: Any, host: Any = None, port: Any = None, **_: Any) -> Any:
        return await self._process.connect(protocol_factory)

    def __del__(self, _warn: Any = None) -> None:
        pass


def _finish(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)


class Process(Owner):
    """``connect(protocol_factory)`` opens the progress channel; ``on_end(error)`` is called when its main task is done."""

    def __init__(
        self,
        world: World,
        network: Network,
        name: str,
        connect: Callable[[Process, Any], Coroutine[Any, Any, Any]],
        on_end: Callable[[Process, BaseException | None], None],
    ) -> None:
        super().__init__(name)
        self.world = world
        self.network = network
        self.loop = Loop(self)
        self.callbacks = 0
        self.strike: tuple[int, Callable[[], None]] | None = None  # after so many callbacks
        self._connect = connect
        self._on_end = on_end
        self._io: deque[Callable[[], None]] = deque()
        self._turn: Event | None = None
        self._turn_at = 0.0
        self._left = 0  # callbacks of an interrupted turn
        self._in_turn = False
        self._main: asyncio.Task[Any] | None = None

    def connect(self, protocol_factory: Any) -> Coroutine[Any, Any, Any]:
        return self._connect(self, protocol_factory)

    def start(self, main: Coroutine[Any, Any, Any]) -> None:
        def begin() -> None:
            self._main = self.loop.create_task(main)
            self._main.add_done_callback(self._ended)

        self.socket_ready(begin)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        error = None if task.cancelled() else task.exception()
        self.world.after(0.001, self._exit, error)

    def _exit(self, error: BaseException | None) -> None:
        if not self.dead:
            self.kill()
            self._on_end(self, error)

    # -- scheduling

    def poke(self) -> None:
        """Schedule a turn of the loop."""
        if not self._in_turn:
            self._wake_at(self.world.now + 0.00002 + self.world.random.random() * 0.0001)

    def alarm(self, when: float) -> None:
        """Schedule a turn for a timer, in the loop's time."""
        if not self._in_turn:
            self._wake_at(self.world.now + max(0.0, when - self.loop.time()))

    def socket_ready(self, call: Callable[[], None]) -> None:
        """Run a callback in the next turn, before timers."""
        if not self.dead:
            self._io.append(call)
            self.poke()

    def _wake_at(self, when: float) -> None:
        if self.dead or self.frozen:
            return
        if self._turn is not None:
            if self._turn_at <= when:
                return
            self._turn.cancel()
        self._turn_at = when
        self._turn = self.world.after(when - self.world.now, self.turn)

    def turn(self) -> None:
        """One iteration of the loop, in asyncio's order: sockets, timers that are due, then all that is ready."""
        self._turn = None
        if self.dead or self.frozen:
            return
        loop = self.loop
        ready, timers = loop._ready, loop._scheduled
        if not self._left:
            while self._io:
                ready.append(asyncio.Handle(self._io.popleft(), (), loop))
            end = loop.time() + 1e-9
            while timers and timers[0]._when <= end:  # type: ignore[attr-defined]
                timer = heapq.heappop(timers)
                timer._scheduled = False  # type: ignore[attr-defined]
                ready.append(timer)
            self._left = len(ready)
        world = self.world
        before, world.owner = world.owner, self
        self._in_turn = True
        events._set_running_loop(loop)
        try:
            while self._left and not self.dead and not self.frozen:
                self._left -= 1
                handle = ready.popleft()
                if not handle.cancelled():
                    world.steps += 1
                    self.callbacks += 1
                    handle._run()
                    if self.strike is not None and self.callbacks >= self.strike[0]:
                        strike, self.strike = self.strike[1], None
                        strike()
        finally:
            events._set_running_loop(None)
            self._in_turn = False
            world.owner = before
        self._again()

    def _again(self) -> None:
        while self.loop._scheduled and self.loop._scheduled[0].cancelled():
            heapq.heappop(self.loop._scheduled)._scheduled = False  # type: ignore[attr-defined]
        if self.loop._ready or self._io:
            self.poke()
        elif self.loop._scheduled:
            self.alarm(self.loop._scheduled[0]._when)  # type: ignore[attr-defined]

    # -- faults

    def freeze(self, seconds: float) -> None:
        """Freeze as SIGSTOP does, and resume ``seconds`` later."""
        if not self.dead and not self.frozen:
            self.world.say("process frozen", process=self.name, seconds=round(seconds, 2))
            self.frozen = True
            self.world.after(seconds, self.thaw)

    def thaw(self) -> None:
        if self.frozen and not self.dead:
            self.world.say("process resumed", process=self.name)
            self.frozen = False
            delayed, self.delayed = self.delayed, []
            for call in delayed:
                self.world.after(self.world.random.random() * 0.0002, self.perform, call)
            self._again()
            if self._left:
                self.poke()

    def kill(self) -> None:
        """Kill as SIGKILL does: the kernel closes the sockets, sent bytes still arrive."""
        if self.dead:
            return
        self.dead = True
        for link in self.network.of(self):
            link.client_closed()
        self.forget_tasks()
        self.loop._ready.clear()
        self.loop._scheduled.clear()
        self._io.clear()

    def forget_tasks(self) -> None:
        """Suppress the warning about tasks that never end."""
        for task in asyncio.all_tasks(self.loop):
            task._log_destroy_pending = False  # type: ignore[attr-defined]
