"""A job in Slurm's queue: how it is waited for, and what is said when it is left there."""

from __future__ import annotations

import signal
from types import SimpleNamespace
from typing import Any, cast

import pytest

from runner.core.errors import Interrupted
from runner.core.model.slurm import JobStatus
from runner.verbs.shared.host_pool import HostPool
from runner.verbs.shared.slurm_queue import QueuedJob

RUN_ID = "0314-1592-digits-65a3"
PENDING = JobStatus("7", "PENDING", "Resources")
WAITS = {"status": PENDING, "ready": False, "attempt": 0, "problems": (), "log": ""}


class Pool:
    """A login node whose job waits, and a user who interrupts."""

    def __init__(self, interrupt: Interrupted) -> None:
        self.asked: list[str] = []
        self.messages: list[str] = []
        self.sessions = {"login": SimpleNamespace(closed=False, rejected="")}
        self.console = SimpleNamespace(message=self.messages.append, phase=lambda _: None)
        self._interrupt = interrupt

    def broadcast(self, *_: object) -> Pool:
        return self

    def collect(self, kind: str, *_: object, **__: object) -> Any:
        self.asked.append(kind)
        return {"login": {"has_begun": False} if kind == "cancel_job" else WAITS}, {}

    def poll_for_stop(self, _: float) -> str:
        raise self._interrupt


@pytest.mark.parametrize(
    ("signum", "cancels", "is_cancelled"),
    [
        (signal.SIGINT, True, True),
        (signal.SIGINT, False, False),
        (signal.SIGHUP, True, False),
    ],
)
def test_who_interrupts_decides_on_the_job(
    signum: int, *, cancels: bool, is_cancelled: bool
) -> None:
    """A launch cancels it; `attach` and a lost terminal leave it."""
    pool = Pool(Interrupted(128 + signum, ""))
    job = QueuedJob(cast("HostPool", pool), "login", RUN_ID, "--cluster hpc")
    with pytest.raises(Interrupted) as caught:
        job.await_start(cancels=cancels)
    assert caught.value.exit_code == 128 + signum
    assert (pool.asked[-1] == "cancel_job") == is_cancelled
    words = "is cancelled; nothing of it had begun" if is_cancelled else "is left in the queue"
    assert words in str(caught.value)
