"""Threads beside the loop of a process: one job each in an agent, all file access in a supervisor.

A thread that waits for a disk in the kernel cannot be interrupted; the loop goes on meanwhile.
"""

from __future__ import annotations

import contextlib
import functools
import os
import queue
import select
import sys
import threading
import time
from typing import Any, Callable, NoReturn, Optional, Set, Tuple, TypeVar

POLL_S = 0.05

T = TypeVar("T")
Call = Callable[[], object]
Work = Callable[[], Any]
Handler = Callable[[Any], object]
Submit = Callable[..., object]
"""Takes work, and what is to be called with its result; see `FileWorker.submit`."""


def run_now(work: Work, then: Handler = id) -> None:
    """Do work in this thread; a `Submit` for a process without an event loop."""
    then(work())


def fail(error: BaseException) -> NoReturn:
    raise error


class Cancelled(BaseException):
    """Nobody waits for this job any more; what suppresses every Exception lets it through."""


class Mailbox:
    """Calls that threads leave for a loop; `wake_fd` is readable when `deliver` has some to do."""

    def __init__(self) -> None:
        self._calls: "queue.SimpleQueue[Call]" = queue.SimpleQueue()
        self.wake_fd, self._wakeup = os.pipe()
        for descriptor in (self.wake_fd, self._wakeup):
            os.set_blocking(descriptor, False)

    def post(self, call: Call) -> None:
        """Have the loop call something, from any thread."""
        self._calls.put(call)
        self.wake()

    def wake(self) -> None:
        with contextlib.suppress(BlockingIOError):  # full: it is readable anyhow
            os.write(self._wakeup, b"\0")

    def deliver(self) -> None:
        """Call what was posted; it belongs into the thread of the loop."""
        with contextlib.suppress(BlockingIOError):
            os.read(self.wake_fd, 4096)
        with contextlib.suppress(queue.Empty):
            while True:
                self._calls.get_nowait()()


class Job(threading.Thread):
    """A thread that notes when it got on last, and ends where it is told to."""

    def __init__(self, jobs: Jobs, work: Call, on_error: Callable[[BaseException], object]) -> None:
        super().__init__(daemon=True)
        self.jobs = jobs
        self.moved_at = time.monotonic()
        self.is_cancelled = False
        self.request: Any = None  # what it answers, if somebody is to hear that it gets on
        self._work = work
        self._on_error = on_error

    def run(self) -> None:
        end: Call = int
        try:
            self._work()
        except Cancelled:
            pass
        except BaseException as error:  # noqa: BLE001
            end = functools.partial(self._on_error, error)
        self.jobs.post(functools.partial(self.jobs.remove, self, end))

    def checkpoint(self) -> None:
        """See `checkpoint`; what cleans up after any error goes on."""
        self.moved_at = time.monotonic()
        if self.is_cancelled and not _is_handling_error():
            raise Cancelled


def _is_handling_error() -> bool:
    """Return whether this thread is in an `except` or `finally` block because of an error."""
    return sys.exc_info()[0] is not None


def checkpoint() -> None:
    """Note that this job got on, perhaps by one file; raise Cancelled if it is to end here."""
    job = threading.current_thread()
    if isinstance(job, Job):
        job.checkpoint()


def pause(seconds: float) -> None:
    """Wait, without being taken for a job that waits for a disk."""
    end = time.monotonic() + seconds
    while (remaining_s := end - time.monotonic()) > 0:
        checkpoint()
        time.sleep(min(POLL_S, remaining_s))
    checkpoint()


def in_loop(call: Callable[[], T]) -> T:
    """Do something in the thread of the loop, where it cannot be cancelled meanwhile."""
    job = threading.current_thread()
    if not isinstance(job, Job):
        return call()
    cleans_up = _is_handling_error()
    ends: "queue.SimpleQueue[Callable[[], T]]" = queue.SimpleQueue()

    def do() -> None:
        try:
            if not cleans_up:
                job.checkpoint()
            result = call()
            ends.put(lambda: result)
        except BaseException as error:  # noqa: BLE001 (the job raises it)
            ends.put(functools.partial(fail, error))

    job.jobs.post(do)
    return ends.get()()


class Jobs(Mailbox):
    """The jobs of one loop.

    The loop alone forks: a child that asked to die with its parent would die with the thread, and
    no module is being imported there.
    """

    def __init__(self) -> None:
        super().__init__()
        self.running: Set[Job] = set()

    def start(self, work: Call, on_error: Callable[[BaseException], object] = fail) -> Job:
        """Do `work` in a thread; the loop calls `on_error` with what it raised, if anything."""
        job = Job(self, work, on_error)
        self.running.add(job)
        job.start()
        return job

    @property
    def wait_s(self) -> float:
        """For how long a job has not got on: its disk does not answer."""
        now = time.monotonic()
        return max((now - job.moved_at for job in self.running), default=0.0)

    def remove(self, job: Job, end: Call) -> None:
        self.running.discard(job)
        end()

    def finish(self, patience_s: float) -> None:
        """Cancel all jobs; return when they have ended, or when none got on for so long."""
        for job in self.running:
            job.is_cancelled = True
        poll = select.poll()
        poll.register(self.wake_fd, select.POLLIN)
        while self.running and self.wait_s < patience_s:
            poll.poll(1000 * POLL_S)
            self.deliver()


class FileWorker(Mailbox):
    """One thread that does work in order, so that an event loop never waits for a file."""

    def __init__(self) -> None:
        super().__init__()
        self._queue: "queue.SimpleQueue[Optional[Tuple[Work, Handler]]]" = queue.SimpleQueue()
        self._unfinished = 0  # whose results were not delivered
        self._began_at: Optional[float] = None
        threading.Thread(target=self._run, daemon=True, name="files").start()

    def submit(self, work: Work, then: Handler = id) -> None:
        """Have `work` done after all before it; `deliver` then calls `then` with its result.

        It raises what the work raised.
        """
        self._unfinished += 1
        self._queue.put((work, then))

    @property
    def busy(self) -> bool:
        return self._unfinished > 0

    @property
    def wait_s(self) -> float:
        """For how long the disk has not answered: the age of the work in progress."""
        began_at = self._began_at
        return 0.0 if began_at is None else time.monotonic() - began_at

    def close(self) -> None:
        """End the thread, once no work is awaited; it closes the descriptors, as their last user.

        Programs that it has started end with it, if they asked for that (`die_with_parent`).
        """
        self._queue.put(None)

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            work, then = item
            self._began_at = time.monotonic()
            end: Call
            try:
                end = functools.partial(then, work())
            except BaseException as error:  # noqa: BLE001 (`deliver` raises it)
                end = functools.partial(fail, error)
            self._began_at = None
            self.post(functools.partial(self._finish, end))
        os.close(self.wake_fd)
        os.close(self._wakeup)

    def _finish(self, end: Call) -> None:
        self._unfinished -= 1
        end()
