"""File worker: one thread for the file access of a process, so that its event loop never waits.

A thread that waits for a disk in the kernel (a hung NFS server, a frozen file system) cannot be
interrupted; what the event loop does meanwhile needs no file.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import time
from typing import Any, Callable, Optional, Tuple

Job = Callable[[], Any]
Handler = Callable[[Any], object]
Result = Tuple[Handler, Any, Optional[BaseException]]
Submit = Callable[..., object]
"""Takes a job, and what is to be called with its result; see `FileWorker.submit`."""


def run_now(job: Job, then: Handler = id) -> None:
    """Do a job in this thread; a `Submit` for a process without an event loop."""
    then(job())


class FileWorker:
    """The thread, with its jobs in order; `wake_fd` is readable when `deliver` has work."""

    def __init__(self) -> None:
        self._jobs: "queue.SimpleQueue[Optional[Tuple[Job, Handler]]]" = queue.SimpleQueue()
        self._results: "queue.SimpleQueue[Result]" = queue.SimpleQueue()
        self._unfinished = 0  # jobs whose results were not delivered
        self._job_began: Optional[float] = None
        self.wake_fd, self._wakeup = os.pipe()
        for descriptor in (self.wake_fd, self._wakeup):
            os.set_blocking(descriptor, False)
        threading.Thread(target=self._work, daemon=True, name="files").start()

    def submit(self, job: Job, then: Handler = id) -> None:
        """Have `job` done after all earlier ones; `deliver` then calls `then` with its result."""
        self._unfinished += 1
        self._jobs.put((job, then))

    @property
    def busy(self) -> bool:
        """Whether the result of a job is awaited."""
        return self._unfinished > 0

    @property
    def wait_s(self) -> float:
        """For how long the disk has not answered: the age of the job in progress."""
        began = self._job_began
        return 0.0 if began is None else time.monotonic() - began

    def deliver(self) -> None:
        """Hand over the results that are there; raise what a job raised."""
        with contextlib.suppress(BlockingIOError):
            os.read(self.wake_fd, 4096)
        with contextlib.suppress(queue.Empty):
            while True:
                then, result, error = self._results.get_nowait()
                self._unfinished -= 1
                if error is not None:
                    raise error
                then(result)

    def close(self) -> None:
        """End the thread, once no job is awaited; it closes the descriptors, as their last user.

        Programs that it has started end with it, if they asked for that (`die_with_parent`).
        """
        self._jobs.put(None)

    def _work(self) -> None:
        while (item := self._jobs.get()) is not None:
            job, then = item
            result = None
            problem = None
            self._job_began = time.monotonic()
            try:
                result = job()
            except BaseException as error:  # noqa: BLE001 (`deliver` raises it)
                problem = error
            self._job_began = None
            self._results.put((then, result, problem))
            with contextlib.suppress(BlockingIOError):  # full: it is readable anyhow
                os.write(self._wakeup, b"\0")
        os.close(self.wake_fd)
        os.close(self._wakeup)
