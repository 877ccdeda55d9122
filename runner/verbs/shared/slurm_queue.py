"""Wait for a job of Slurm in its queue, and its end there."""

from __future__ import annotations

import select
import signal
import sys
import time
from collections.abc import Mapping
from typing import Any, NoReturn

from runner.core.errors import Interrupted, NotReady, Problem
from runner.core.model.facts import FactsRequest
from runner.core.model.slurm import IMPOSSIBLE_REASONS, UNKNOWN, JobStatus
from runner.core.shell import this_program
from runner.core.spec import Node
from runner.verbs.shared.host_pool import HostPool

POLL_S, MAX_POLL_S = 1.0, 30.0
"""The pause between two questions about a job: it grows with the time that it waits."""

ANSWER_TIMEOUT_S = 30.0
QUESTION = (
    "Ctrl-C: cancel the job, or leave it in the queue? Type c or l, and Enter "
    f"(l, also after {ANSWER_TIMEOUT_S:.0f} s; Ctrl-C again: c)"
)
CANCEL_ANSWERS = ("c", "cancel")


class LoginLost(NotReady):
    """The connection to a login node is gone."""


class QueuedJob:
    """The job of one run, which `node` is asked about: its login node, or the name of one."""

    def __init__(self, pool: HostPool, node: str, run_id: str, run_flags: str) -> None:
        self._pool, self._node, self._run_id, self._flags = pool, node, run_id, run_flags
        self._shown = ""

    def await_start(self, attempt: int = 0, *, cancels: bool) -> None:
        """Return once an attempt, or a later one, has begun on all nodes of the job.

        With `cancels`, a signal cancels the job where nobody can be asked; else it leaves it.

        Raises:
            NotReady: It never will.
            Interrupted: The user cancelled the job, or left it in the queue.
        """
        waits_since, last_state = time.monotonic(), ""
        while True:
            try:
                answer = self._ask("job", "job")
                status: JobStatus = answer["status"]
                if answer["ready"] and answer["attempt"] >= attempt:
                    return
                self._check(answer, status)
                self._show(status.text)
                if status.state != last_state:
                    last_state, waits_since = status.state, time.monotonic()
                self._pool.poll_for_stop(_pause_s(time.monotonic() - waits_since))
            except LoginLost as error:
                try:
                    reconnect(self._pool, error)
                except Interrupted as signalled:
                    self._leave(signalled, str(error))
            except Interrupted as error:
                self._on_interrupt(error, cancels=cancels)

    def cancel(self) -> str:
        """End the job; once nothing of it is left, return what became of it.

        NotReady: that is not known.
        """
        answer = self._ask("cancel_job", "job_cancelled")
        message = f"run {self._run_id}: its job is cancelled; "
        if answer["has_begun"]:
            return f"{message}it had begun:\n  {this_program()} logs {self._flags}"
        return f"{message}nothing of it had begun"

    def _ask(self, kind: str, reply: str) -> dict[str, Any]:
        return ask_login(self._pool, self._node, kind, {"run_id": self._run_id}, reply)

    def _show(self, text: str) -> None:
        if text != self._shown:
            self._shown = text
            self._pool.console.message(text)
            self._pool.console.phase(text)

    def _check(self, answer: Mapping[str, Any], status: JobStatus) -> None:
        """Raise NotReady if a job will not, or did not, start the run."""
        if answer["problems"]:
            raise NotReady(answer["problems"])
        if status.is_impossible:
            message = f"Slurm would never start the job: {IMPOSSIBLE_REASONS[status.reason]}"
            hint = f"its reason was {status.reason}; job {status.job_id} is cancelled"
            raise NotReady([Problem("cluster.slurm", message, hint)])
        if status.has_ended:
            message = f"{status.text}; it ended before the run began"
            raise NotReady([Problem("cluster.slurm", message, answer["log"].strip())])

    def _on_interrupt(self, error: Interrupted, *, cancels: bool) -> None:
        """Have the user choose between cancelling the job and leaving it."""
        if cancels or is_asked(error):
            answer = self._asks_to_cancel(error)
            if answer is None:
                self._pool.console.message(f"{self._shown}: its run begins; Ctrl-C stops that")
                return
            cancels = answer
        if cancels:
            try:
                message = self.cancel()
            except NotReady as problem:
                self._leave(error, str(problem))
            raise Interrupted(error.exit_code, message) from None
        self._leave(error)

    def _asks_to_cancel(self, error: Interrupted) -> bool | None:
        """Return whether a signal is to cancel the job: somebody at a terminal is asked.

        Ctrl-C again does; a closed terminal does not. None: the job was over before the answer.
        """
        if not is_asked(error):
            return error.exit_code != 128 + signal.SIGHUP
        self._pool.console.message(QUESTION)
        deadline = time.monotonic() + ANSWER_TIMEOUT_S
        next_look = time.monotonic() + POLL_S
        while (now := time.monotonic()) < deadline:
            if select.select([sys.stdin], [], [], 0.0)[0]:
                return sys.stdin.readline().strip().lower() in CANCEL_ANSWERS
            try:
                self._pool.poll_for_stop(0.1)
                if now >= next_look:
                    next_look = now + POLL_S
                    if self._is_over():
                        return None
            except Interrupted:
                return True
        return False

    def _is_over(self) -> bool:
        """Return whether the job does not wait any more, and show how it stands."""
        try:
            answer = self._ask("job", "job")
        except NotReady:
            return False
        status: JobStatus = answer["status"]
        self._show(status.text)
        return bool(answer["ready"] or status.has_ended)

    def _leave(self, error: Interrupted, why: str = "") -> NoReturn:
        message = f"the job of run {self._run_id} is left in the queue"
        if why:
            message = f"{why}\n{message}"
        hints = (f"{this_program()} {verb} {self._flags}" for verb in ("attach", "stop"))
        raise Interrupted(error.exit_code, "\n  ".join([message, *hints])) from None


def is_asked(error: Interrupted) -> bool:
    """Return whether somebody at a terminal can be asked what a signal means."""
    has_terminal = sys.stdin is not None and sys.stdin.isatty()
    return has_terminal and error.exit_code == 128 + signal.SIGINT


def ask_login(
    pool: HostPool,
    node: str,
    kind: str,
    data: Mapping[str, Any],
    reply: str,
    payload: bytes = b"",
) -> dict[str, Any]:
    """Return the reply of a login node to a request.

    Raises:
        LoginLost: The connection to it is gone.
        NotReady: It refused, in its own words, or it sent what cannot be processed.
    """
    session = pool.sessions.get(node)
    if session is None or session.closed:
        raise LoginLost([Problem(node, "the connection to it is gone")])
    broadcast = pool.broadcast([node], lambda *_: None)
    replies, problems = broadcast.collect(kind, data, reply, payload=payload)
    if problem := problems.get(node):
        refusal = f"could not {kind.replace('_', ' ')}: "
        if not problem.message.startswith(refusal):
            raise (NotReady if session.rejected else LoginLost)([Problem(node, problem.message)])
        raise NotReady([Problem("cluster.slurm", problem.message[len(refusal) :])])
    return replies[node]


def job_of_lost_submission(
    pool: HostPool, node: str, run_id: str, lost: LoginLost, stop_command: str
) -> str:
    """Return the id of a job that may have been submitted as its login node was lost.

    Raises:
        LoginLost: It was not.
        Interrupted: The user did not wait until that was known.
    """
    error: LoginLost | None = lost
    try:
        while True:
            try:
                if error is not None:
                    reconnect(pool, error)
                status = ask_login(pool, node, "job", {"run_id": run_id}, "job")["status"]
            except LoginLost as again:
                error = again
                continue
            if status.state == UNKNOWN:
                raise lost
            if status.job_id and not status.problem:
                return str(status.job_id)
            error = None
            pool.poll_for_stop(POLL_S)
    except Interrupted as signalled:
        message = f"whether run {run_id} was submitted is not known\n  {stop_command}"
        raise Interrupted(signalled.exit_code, message) from None


def reconnect(pool: HostPool, lost: LoginLost) -> None:
    """Connect to a login node again, however long that takes; a signal raises Interrupted."""

    def request(node: Node) -> FactsRequest:
        return FactsRequest(
            node=node.name, workdir=pool.spec.cluster.workdir, skip_launch_facts=True
        )

    problem: Problem | None = lost.problems[0]
    node, shown, pause_s = lost.problems[0].subject, "", POLL_S
    while problem:
        if problem.message != shown:
            shown = problem.message
            pool.console.message(f"{node}: {shown}; connecting to it again")
        pool.close_sessions()
        pool.poll_for_stop(pause_s)
        _, problems = pool.collect_available_facts(request)
        problem, pause_s = problems.get(node), min(MAX_POLL_S, 2 * pause_s)


def _pause_s(waited_s: float) -> float:
    """Return how long to wait before the next question."""
    return min(MAX_POLL_S, max(POLL_S, waited_s / 10))
