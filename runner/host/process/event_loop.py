"""Event loop of a supervisor, and job queue of an agent: each does all its work in one thread.

The loop waits for readable descriptors, ended children and SIGTERM. The queue runs long requests in
steps, so that the agent stays responsive.
"""

from __future__ import annotations

import os
import resource
import selectors
import signal
import socket
import time
from collections import deque
from typing import Any, Callable, Deque, Dict, Generator, Optional, Tuple, TypeVar

from runner.core.protocol.frames import Frame

T = TypeVar("T")
Steps = Generator[None, None, None]  # long work in small steps, with other requests in between
TIME_SLICE_S = 0.02  # how long the steps may keep the connection waiting
PROGRESS_INTERVAL_S = 1.0  # how often the controller is told that a long request is in progress
PAUSE_STEP_S = 0.01
RESERVED_FDS = 32  # that are left for files and processes when no connection is accepted
MAX_QUEUED = 16  # how many requests may wait; then no more are read


def run_steps(steps: Generator[None, None, T]) -> T:
    """Do long work at once, and return its result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]


def pause(seconds: float) -> Steps:
    """Wait, in steps: a job that waits for another host keeps no request of ours waiting."""
    end = time.monotonic() + seconds
    while (remaining_s := end - time.monotonic()) > 0:
        time.sleep(min(PAUSE_STEP_S, remaining_s))
        yield


class EventLoop:
    """Readers of descriptors, and the signals of this process."""

    def __init__(self) -> None:
        self.term_received = False
        self._selector = selectors.DefaultSelector()
        self._wakeup: Tuple[int, ...] = ()

    def open(self) -> None:
        """Handle signals from now on: note SIGTERM, ignore those of a terminal."""
        read_fd, write_fd = os.pipe()
        for descriptor in (read_fd, write_fd):
            os.set_blocking(descriptor, False)
        signal.set_wakeup_fd(write_fd, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, self._on_term)
        for signum in (signal.SIGINT, signal.SIGHUP):
            signal.signal(signum, signal.SIG_IGN)
        self._wakeup = (read_fd, write_fd)
        self.add_reader(read_fd, lambda: os.read(read_fd, 4096))

    def add_reader(self, descriptor: int, handler: Callable[[], Any]) -> None:
        """Call `handler` whenever the descriptor is readable."""
        self._selector.register(descriptor, selectors.EVENT_READ, handler)

    def remove_reader(self, descriptor: int) -> None:
        """Stop calling the handler of a descriptor."""
        self._selector.unregister(descriptor)

    @staticmethod
    def accept(listener: socket.socket) -> Optional[socket.socket]:
        """Return a new connection; None if it has gone again, or if too few descriptors are left.

        It is refused then: left alone, it would keep the listener readable.
        """
        try:
            connection = listener.accept()[0]
        except OSError:
            return None
        soft_limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if connection.fileno() >= soft_limit - RESERVED_FDS > 0:  # the lowest free one is taken
            connection.close()
            return None
        return connection

    def wait(self, seconds: float) -> None:
        """Sleep until a descriptor is readable or a signal comes, and call the handlers."""
        for key, _ in self._selector.select(seconds):
            key.data()

    def close(self) -> None:
        """Close the descriptors, and leave signals to the next loop."""
        signal.set_wakeup_fd(-1)
        for descriptor in self._wakeup:
            os.close(descriptor)
        self._selector.close()

    def _on_term(self, *_: Any) -> None:
        self.term_received = True


class JobQueue:
    """The requests of the controller that are not done yet."""

    def __init__(
        self,
        reply: Callable[[str, Dict[str, Any]], None],
        refuse: Callable[[Frame, Exception], None],
    ) -> None:
        self._reply, self._refuse = reply, refuse
        self._queue: Deque[Tuple[Frame, Steps]] = deque()
        self._last_progress = time.monotonic()

    def __bool__(self) -> bool:
        return bool(self._queue)

    @property
    def full(self) -> bool:
        """Whether no more requests should be read for now."""
        return len(self._queue) >= MAX_QUEUED

    def add(self, frame: Frame, steps: Steps) -> None:
        """Queue the work of one request."""
        self._queue.append((frame, steps))
        self.advance()

    def advance(self) -> None:
        """Work for one time slice; a request that fails is refused, and the next begins."""
        deadline = time.monotonic() + TIME_SLICE_S
        while self._queue and time.monotonic() < deadline:
            frame, steps = self._queue[0]
            try:
                next(steps)
            except StopIteration:
                self._queue.popleft()
            except Exception as error:  # noqa: BLE001 (the controller hears of it, whatever it is)
                self._queue.popleft()
                self._refuse(frame, error)
        if self._queue and time.monotonic() > self._last_progress + PROGRESS_INTERVAL_S:
            self._last_progress = time.monotonic()
            self._reply("in_progress", {"id": self._queue[0][0].data.get("id")})

    def cancel_all(self, reason: str) -> None:
        """Refuse all requests, also the one in progress."""
        while self._queue:
            frame, steps = self._queue.popleft()
            steps.close()
            self._refuse(frame, RuntimeError(reason))
