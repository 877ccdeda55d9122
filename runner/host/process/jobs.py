"""Jobs: the threads of an agent, one for each request, beside the loop that starts them.

A thread that waits for a disk in the kernel (a hung NFS server, a frozen file system) cannot be
interrupted, and the loop goes on meanwhile. It alone forks: a child that asked to die with its
parent would die with the thread, and no module is being imported there.
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
from typing import Any, Callable, List, Set, TypeVar

POLL_S = 0.05

T = TypeVar("T")
Call = Callable[[], object]


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
        """Wake the loop up."""
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
        """Do the work; the loop decides about what was raised."""
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
        if self.is_cancelled and not is_handling_error():
            raise Cancelled


def is_handling_error() -> bool:
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
    cleans_up = is_handling_error()
    ended = threading.Event()
    results: List[T] = []
    errors: List[BaseException] = []

    def do() -> None:
        try:
            if not cleans_up:
                job.checkpoint()
            results.append(call())
        except BaseException as error:  # noqa: BLE001 (the job raises it)
            errors.append(error)
        ended.set()

    job.jobs.post(do)
    ended.wait()
    if errors:
        raise errors[0]
    return results[0]


def fail(error: BaseException) -> None:
    """Raise what a job raised."""
    raise error


class Jobs(Mailbox):
    """The jobs of one loop."""

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
        """Take the end of a job."""
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
