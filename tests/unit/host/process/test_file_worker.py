"""File worker: its end."""

from __future__ import annotations

import os
import threading
from typing import Any

import pytest

from runner.host.process.file_worker import FileWorker
from tests.lab.waiting import PATIENCE, wait_until


def test_the_thread_is_the_last_user_of_its_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    """A result may be taken, and the worker closed, before the thread says that it is there."""
    problems: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", problems.append)
    known, taken = {*threading.enumerate()}, threading.Event()
    worker = FileWorker()
    (thread,) = {*threading.enumerate()} - known
    put = worker._calls.put

    class Late:
        """Results that are there before the thread knows."""

        get_nowait = worker._calls.get_nowait

        def put(self, call: Any) -> None:
            put(call)
            taken.wait()

    monkeypatch.setattr(worker, "_calls", Late())
    worker.submit(int)
    while worker.busy:
        worker.deliver()
    worker.close()
    taken.set()
    thread.join(5 * PATIENCE)
    assert not thread.is_alive()
    assert problems == []
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(worker.wake_fd)


@pytest.mark.parametrize("problem", [OSError(28, "full"), SystemExit(1), KeyboardInterrupt()])
def test_no_job_ends_the_thread(problem: BaseException) -> None:
    """Programs that it has started would end with it."""

    def fail() -> None:
        raise problem

    worker, results = FileWorker(), list[int]()
    worker.submit(fail)
    worker.submit(lambda: 7, results.append)
    raised: list[BaseException] = []

    def is_done() -> bool:
        try:
            worker.deliver()
        except BaseException as error:  # noqa: BLE001
            raised.append(error)
        return not worker.busy

    wait_until(is_done, "the second job")
    assert raised == [problem]
    worker.close()
    assert results == [7]
