"""Request queue of an agent: long requests in steps, which its file worker does, one at a time.

The agent stays responsive meanwhile, whatever a disk does.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections import deque
from typing import Any, Callable, Deque, Dict, Generator, NamedTuple, Optional, Tuple

from runner.core.wire.codec import Frame
from runner.host.process.file_worker import FileWorker

TIME_SLICE_S = 0.02  # how long the steps of a request may keep other file access waiting
PROGRESS_INTERVAL_S = 1.0  # how often the controller is told that a long request is in progress
MAX_QUEUED = 16  # how many requests may wait; then no more are read

LoopCall = Callable[[], object]
RequestSteps = Generator[Optional[LoopCall], None, None]
"""The steps of a request; what one yields, the agent's loop calls in its own thread."""

QueuedRequest = Tuple[Frame, RequestSteps]


class Slice(NamedTuple):
    """What came of a time slice of steps: nothing, their end, or what the loop is to call."""

    is_last: bool = False
    error: Optional[Exception] = None
    loop_call: Optional[LoopCall] = None


class RequestQueue:
    """The requests of the controller that are not done yet."""

    def __init__(
        self,
        files: FileWorker,
        reply: Callable[[str, Dict[str, Any]], None],
        refuse: Callable[[Frame, Exception], None],
    ) -> None:
        self._files = files
        self._reply = reply
        self._refuse = refuse
        self._queue: Deque[QueuedRequest] = deque()
        self._is_working = False
        self._last_progress = time.monotonic()

    def __bool__(self) -> bool:
        return bool(self._queue)

    @property
    def full(self) -> bool:
        """Whether no more requests should be read for now."""
        return len(self._queue) >= MAX_QUEUED

    def add(self, frame: Frame, steps: RequestSteps) -> None:
        """Queue the work of one request."""
        self._queue.append((frame, steps))
        self._continue()

    def cancel_all(self, reason: str) -> None:
        """Refuse all requests, also the one in progress, which ends after its time slice."""
        while self._queue:
            frame, _ = self._queue.popleft()
            self._refuse(frame, RuntimeError(reason))

    def _continue(self) -> None:
        """Have the steps of the first request done for a time slice."""
        if self._queue and not self._is_working:
            self._is_working = True
            request = self._queue[0]
            work = functools.partial(_work, request[1])
            self._files.submit(work, functools.partial(self._on_worked, request))

    def _on_worked(self, request: QueuedRequest, result: Slice) -> None:
        self._is_working = False
        frame, steps = request
        is_last, error, loop_call = result
        if not (self._queue and self._queue[0] is request):  # cancelled
            self._files.submit(functools.partial(_close, steps))
            self._continue()
            return
        if loop_call is not None:
            try:
                loop_call()
            except Exception as call_error:  # noqa: BLE001 (the controller hears of it)
                is_last = True
                error = call_error
                self._files.submit(functools.partial(_close, steps))
        if is_last:
            self._queue.popleft()
            if error is not None:
                self._refuse(frame, error)
        elif time.monotonic() > self._last_progress + PROGRESS_INTERVAL_S:
            self._last_progress = time.monotonic()
            self._reply("in_progress", {"id": frame.data.get("id")})
        self._continue()


def _work(steps: RequestSteps) -> Slice:
    deadline = time.monotonic() + TIME_SLICE_S
    try:
        while time.monotonic() < deadline:
            loop_call = next(steps)
            if loop_call is not None:
                return Slice(loop_call=loop_call)
    except StopIteration:
        return Slice(is_last=True)
    except Exception as error:  # noqa: BLE001 (the controller hears of it, whatever it is)
        return Slice(is_last=True, error=error)
    return Slice()


def _close(steps: RequestSteps) -> None:
    with contextlib.suppress(Exception):  # the request was refused already
        steps.close()
