"""File worker: one thread for the file access of a process, so that its event loop never waits.

A thread that waits for a disk in the kernel (a hung NFS server, a frozen file system) cannot be
interrupted; what the event loop does meanwhile needs no file.
"""

from __future__ import annotations

import functools
import os
import queue
import threading
import time
from typing import Any, Callable, Optional, Tuple

from runner.host.process.jobs import Mailbox, fail

Job = Callable[[], Any]
Handler = Callable[[Any], object]
Submit = Callable[..., object]
"""Takes a job, and what is to be called with its result; see `FileWorker.submit`."""


def run_now(job: Job, then: Handler = id) -> None:
    """Do a job in this thread; a `Submit` for a process without an event loop."""
    then(job())


class FileWorker(Mailbox):
    """The thread, with its jobs in order."""

    def __init__(self) -> None:
        super().__init__()
        self._jobs: "queue.SimpleQueue[Optional[Tuple[Job, Handler]]]" = queue.SimpleQueue()
        self._unfinished = 0  # jobs whose results were not delivered
        self._job_began: Optional[float] = None
        threading.Thread(target=self._work, daemon=True, name="files").start()

    def submit(self, job: Job, then: Handler = id) -> None:
        """Have `job` done after all earlier ones; `deliver` then calls `then` with its result.

        It raises what the job raised.
        """
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

    def close(self) -> None:
        """End the thread, once no job is awaited; it closes the descriptors, as their last user.

        Programs that it has started end with it, if they asked for that (`die_with_parent`).
        """
        self._jobs.put(None)

    def _work(self) -> None:
        while (item := self._jobs.get()) is not None:
            job, then = item
            self._job_began = time.monotonic()
            end: Callable[[], object]
            try:
                end = functools.partial(then, job())
            except BaseException as error:  # noqa: BLE001 (`deliver` raises it)
                end = functools.partial(fail, error)
            self._job_began = None
            self.post(functools.partial(self._finish, end))
        os.close(self.wake_fd)
        os.close(self._wakeup)

    def _finish(self, end: Callable[[], object]) -> None:
        self._unfinished -= 1
        end()
