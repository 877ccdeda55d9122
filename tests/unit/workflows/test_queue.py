"""A job in Slurm's queue: how it is waited for, and what is said when it is left there."""

from __future__ import annotations

import io
import re
import shlex
import signal
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest

from runner.cli.parser import VerbParser
from runner.cli.verb import load_verb
from runner.core.errors import Interrupted, NotReady, Problem
from runner.core.model.slurm import JobStatus
from runner.core.shell import this_program
from runner.workflows.host_pool import HostPool
from runner.workflows.slurm import queue as job
from runner.workflows.slurm.queue import (
    QUESTION,
    QueuedJob,
    job_of_lost_submission,
)

RUN_ID = "0314-1592-digits-65a3"
FLAGS = f"--run {RUN_ID} --cluster hpc"
PENDING, RUNNING = (
    JobStatus("7", "PENDING", "Resources"),
    JobStatus("7", "RUNNING", nodes="n[1-2]"),
)


def told(status: JobStatus, **more: Any) -> dict[str, Any]:
    """What a login node answers."""
    return {"status": status, "ready": False, "attempt": 0, "problems": (), "log": "", **more}


READY = told(RUNNING, ready=True)


class Pool:
    """A login node that answers in turn, and a user who may interrupt."""

    def __init__(self, *answers: Any) -> None:
        self.answers, self.asked, self.tries = [*answers], list[str](), 0
        self.has_begun = False
        self.messages: list[str] = []
        self.pauses: list[float] = []
        self.interrupts: list[Interrupted] = []
        self.sessions = {"login": SimpleNamespace(closed=False, rejected="")}
        self.console = SimpleNamespace(message=self.messages.append, phase=lambda _: None)

    def broadcast(self, names: list[str], _: object) -> Pool:
        """Return what asks those nodes."""
        assert names == ["login"]
        return self

    def collect(self, kind: str, data: dict[str, Any], reply: str, *, payload: bytes) -> Any:
        """Answer a request."""
        self.asked.append(kind)
        if kind == "cancel_job":
            return {"login": {"has_begun": self.has_begun}}, {}
        assert (data, reply, payload) == ({"run_id": RUN_ID}, "job", b"")
        answer = self.answers.pop(0)
        return ({}, {"login": answer}) if isinstance(answer, Problem) else ({"login": answer}, {})

    def close_sessions(self) -> None:
        """Leave the login node."""
        self.sessions = {}

    def collect_available_facts(self, _: object) -> tuple[dict[str, object], dict[str, Problem]]:
        """Connect again, the second time with success."""
        self.tries += 1
        if self.tries == 1:
            return {}, {"login": Problem("login", "not reached")}
        self.sessions = {"login": SimpleNamespace(closed=False, rejected="")}
        return {"login": None}, {}

    def poll_for_stop(self, seconds: float) -> str:
        """Wait, or be interrupted."""
        self.pauses.append(seconds)
        if self.interrupts:
            raise self.interrupts.pop(0)
        return ""


def queued(pool: Pool) -> QueuedJob:
    """The job of a run that this login node knows."""
    return QueuedJob(cast("HostPool", pool), "login", RUN_ID, FLAGS)


def refusal(*answers: Any) -> list[Problem]:
    """Why a job that stands so never begins its run."""
    with pytest.raises(NotReady) as caught:
        queued(Pool(*answers)).await_start(cancels=True)
    return [*caught.value.problems]


def test_each_state_is_shown_once() -> None:
    """Until the run has begun on all nodes; what has begun may be the attempt before."""
    pool = Pool(told(PENDING), told(PENDING), told(RUNNING), told(RUNNING), READY)
    queued(pool).await_start(cancels=True)
    assert pool.messages == ["job 7 is pending (Resources)", "job 7 has its nodes: n[1-2]"]
    assert pool.answers == []
    pool = Pool(READY, told(RUNNING, ready=True, attempt=1), READY)
    queued(pool).await_start(1, cancels=False)
    assert pool.answers == [READY]


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (
            told(JobStatus("7", "FAILED"), log="n1: no python\n"),
            Problem(
                "cluster.slurm", "job 7 is failed; it ended before the run began", "n1: no python"
            ),
        ),
        (
            told(JobStatus("7", "PENDING", "BadConstraints")),
            Problem(
                "cluster.slurm",
                "Slurm would never start the job: no node has what it asks for",
                "its reason was BadConstraints; job 7 is cancelled",
            ),
        ),
        (told(RUNNING, problems=[Problem("n1", "no torch")]), Problem("n1", "no torch")),
        (
            Problem("login", "could not job: Slurm does not answer", "again"),
            Problem("cluster.slurm", "Slurm does not answer"),
        ),
    ],
    ids=["failed", "impossible", "not ready", "refused"],
)
def test_why_a_run_never_begins(answer: Any, problem: Problem) -> None:
    """The words are those of whoever knows."""
    assert refusal(told(PENDING), answer) == [problem]


def test_a_lost_connection_is_opened_again() -> None:
    """A job may wait for days: its login node is asked again once it can be."""
    lost = Problem("login", "the connection to it broke: gone", "repeat")
    pool = Pool(told(PENDING), lost, READY)
    queued(pool).await_start(cancels=True)
    assert pool.tries == 2
    assert "login: the connection to it broke: gone; connecting to it again" in pool.messages


def test_what_cannot_be_processed_is_not_asked_for_again() -> None:
    """It would be sent again."""
    broke = Problem("login", "the connection to it broke: it sent an unknown kind of frame", "")
    pool = Pool(broke)
    pool.sessions["login"].rejected = "it sent an unknown kind of frame"
    with pytest.raises(NotReady, match="unknown kind"):
        queued(pool).await_start(cancels=True)
    assert pool.tries == 0


def test_a_signal_while_nothing_is_connected_leaves_the_job() -> None:
    """It cannot be cancelled; the commands that can are printed."""
    pool = Pool(Problem("login", "the connection to it broke: gone", ""))
    pool.interrupts = [Interrupted(130, "")]
    with pytest.raises(Interrupted, match="is left in the queue") as caught:
        queued(pool).await_start(cancels=True)
    assert commands(str(caught.value)) == ["attach", "stop"]
    assert pool.asked == ["job"]


@pytest.mark.parametrize(
    ("signum", "typed", "cancels", "is_cancelled"),
    [
        (signal.SIGINT, None, True, True),
        (signal.SIGINT, None, False, False),
        (signal.SIGHUP, None, True, False),
        (signal.SIGINT, "C\n", False, True),
        (signal.SIGINT, "\n", True, False),
    ],
)
def test_who_interrupts_decides_on_the_job(
    monkeypatch: pytest.MonkeyPatch,
    signum: int,
    typed: str | None,
    *,
    cancels: bool,
    is_cancelled: bool,
) -> None:
    """At a terminal it is a question; else a launch cancels, and a lost terminal never does."""
    terminal = io.StringIO(typed or "")
    monkeypatch.setattr(terminal, "isatty", lambda: typed is not None)
    monkeypatch.setattr("sys.stdin", terminal)
    monkeypatch.setattr("select.select", lambda *_: ([terminal], [], []))
    pool = Pool(told(PENDING))
    pool.interrupts = [Interrupted(128 + signum, "")]
    with pytest.raises(Interrupted) as caught:
        queued(pool).await_start(cancels=cancels)
    assert caught.value.exit_code == 128 + signum
    assert (pool.asked[-1] == "cancel_job") == is_cancelled
    assert (pool.messages[-1] == QUESTION) == (typed is not None)
    words = "is cancelled; nothing of it had begun" if is_cancelled else "is left in the queue"
    assert words in str(caught.value)


@pytest.mark.parametrize("taken", [True, False])
def test_a_connection_lost_at_a_submission(taken: bool) -> None:
    """Slurm may have taken the job all the same; that is known once its name was looked for."""
    lost = job.LoginLost([Problem("login", "the connection to it broke: gone")])
    unknown, late = JobStatus(state="UNKNOWN"), JobStatus("7", problem="late")
    pool = Pool(
        told(JobStatus(state="SUBMITTING")), told(late), told(PENDING if taken else unknown)
    )
    ask = partial(job_of_lost_submission, cast("HostPool", pool), "login", RUN_ID, lost, "stop it")
    if taken:
        assert ask() == "7"
    else:
        with pytest.raises(job.LoginLost, match="gone"):
            ask()
    pool = Pool()
    pool.interrupts = [Interrupted(130, "")]
    ask = partial(job_of_lost_submission, cast("HostPool", pool), "login", RUN_ID, lost, "stop it")
    with pytest.raises(Interrupted, match="whether run .* was submitted is not known"):
        ask()


def test_a_second_ctrl_c_cancels(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is an answer to the question, and no answer for a while leaves the job."""
    monkeypatch.setattr("sys.stdin", SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr("select.select", lambda *_: ([], [], []))
    for again in (True, False):
        monkeypatch.setattr(job, "ANSWER_TIMEOUT_S", 60.0 if again else 0.0)
        pool = Pool(told(PENDING))
        pool.interrupts = [Interrupted(130, "")] * 2
        with pytest.raises(Interrupted):
            queued(pool).await_start(cancels=True)
        assert (pool.asked[-1] == "cancel_job") == again


def commands(text: str) -> list[str]:
    """The verbs of the commands that are printed, each about our run."""
    found = re.findall(rf"^ *{re.escape(this_program())} (\w+) (.+)$", text, re.MULTILINE)
    values = [(v, VerbParser(load_verb(v)).values(shlex.split(words))) for v, words in found]
    assert all(each["run"] == RUN_ID and each["cluster"] == "hpc" for _, each in values), values
    return [verb for verb, _ in values]
