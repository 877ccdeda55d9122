"""Jobs and the file worker: threads that end in order, and a loop that waits for none."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runner.host.process import subreaper
from runner.host.process.bounded_child import BoundedChild, report_facts
from runner.host.process.jobs import Cancelled, FileWorker, Job, Jobs, checkpoint, in_loop, pause
from tests.lab.waiting import PATIENCE, wait_until


def until(jobs: Jobs, is_met: Callable[[], bool], name: str) -> None:
    """Be the loop of the jobs until something is the case."""

    def look() -> bool:
        jobs.deliver()
        return is_met()

    wait_until(look, name)


def test_a_cancelled_job_ends_at_a_safe_point_and_cleans_up() -> None:
    """Though it suppresses errors; what it does to clean up is not cut short."""
    jobs = Jobs()
    steps: list[str] = []

    def work() -> None:
        try:
            while True:
                try:
                    pause(0.001)
                except Exception:  # noqa: BLE001
                    steps.append("suppressed")
        except Cancelled:
            checkpoint()
            steps.append("cleaned up")
            raise

    job = jobs.start(work)
    job.is_cancelled = True
    until(jobs, lambda: not job.is_alive(), "its end")
    jobs.deliver()
    assert steps == ["cleaned up"]


def test_a_job_cleans_up_after_its_own_error_too() -> None:
    """Of a start whose disk fails while the controller leaves, nothing stays behind."""
    jobs = Jobs()
    steps: list[str] = []

    def work() -> None:
        job = threading.current_thread()
        assert isinstance(job, Job)
        try:
            job.is_cancelled = True
            Path("/none").stat()
        except OSError:
            checkpoint()
            in_loop(lambda: steps.append("in the loop"))
            steps.append("cleaned up")
        checkpoint()
        steps.append("went on")

    job = jobs.start(work)
    until(jobs, lambda: not job.is_alive(), "its end")
    assert steps == ["in the loop", "cleaned up"]


def test_the_loop_does_nothing_for_a_cancelled_job() -> None:
    """A stop that comes before a start keeps that from beginning."""
    jobs = Jobs()
    started: list[str] = []
    job = jobs.start(lambda: in_loop(lambda: started.append(threading.current_thread().name)))
    job.is_cancelled = True
    until(jobs, lambda: not job.is_alive(), "its end")
    assert started == []
    jobs.start(lambda: in_loop(lambda: started.append(threading.current_thread().name)))
    until(jobs, lambda: started == ["MainThread"], "the call")


@pytest.mark.promise(11)
def test_a_job_whose_disk_hangs_is_told_of_and_left_behind(tmp_path: Path) -> None:
    """Nobody waits longer than told for what cannot be interrupted."""
    hung = tmp_path / "hung"
    os.mkfifo(hung)
    jobs = Jobs()
    stuck = jobs.start(hung.read_bytes)
    moving = jobs.start(lambda: pause(3600))
    wait_until(lambda: jobs.wait_s > 0.2, "the wait to be seen")
    jobs.finish(0.3)
    assert not moving.is_alive()
    assert stuck.is_alive()
    os.close(os.open(hung, os.O_WRONLY))
    stuck.join(60)


def test_a_child_does_not_end_with_the_thread_that_asked_for_it() -> None:
    """The kernel's signal at the parent's death is sent when the thread that forked ends."""
    jobs = Jobs()
    children: list[BoundedChild] = []
    read_fd, write_fd = os.pipe()

    def live() -> None:
        subreaper.die_with_parent(signal.SIGKILL)
        report_facts(asked=True)
        os.read(0, 1)
        report_facts(alive=True)

    def work() -> None:
        child = BoundedChild(live, 60, input_fd=read_fd)
        while "asked" not in child.report():
            pause(0.01)
            child.advance()
        children.append(child)

    job = jobs.start(work)
    until(jobs, lambda: bool(children), "its child")
    thread = Path(f"/proc/self/task/{job.native_id}")
    until(jobs, lambda: not thread.exists(), "the end of the thread")
    os.write(write_fd, b"x")
    (child,) = children

    def has_ended() -> bool:
        child.advance()
        return child.code is not None

    wait_until(has_ended, "its end")
    assert (child.code, child.report().get("alive")) == (0, True)
    os.close(read_fd)
    os.close(write_fd)


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
