"""Job queue: long requests run in turn, in steps, so that the agent stays responsive."""

from __future__ import annotations

import time
from collections import deque
from typing import Any, Callable, Deque, Dict, Generator, Tuple

from runner.core.protocol.frames import Frame

Steps = Generator[None, None, None]  # long work in small steps, with other requests in between
TIME_SLICE_S = 0.02  # how long the steps may keep the connection waiting
PROGRESS_INTERVAL_S = 1.0  # how often the controller is told that a long request is in progress
MAX_QUEUED = 16  # how many requests may wait; then no more are read


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
