"""Wait for a job of Slurm in its queue, and its end there."""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping
from typing import Any, NoReturn

from runner.core.errors import SIGNAL_EXIT_BASE, Interrupted, NotReady, Problem
from runner.core.model.slurm import IMPOSSIBLE_REASONS, JobStatus
from runner.core.shell import this_program
from runner.verbs.shared.host_pool import HostPool

POLL_S = 1.0
MAX_POLL_S = 30.0
"""The pause between two questions about a job: it grows with the time that it waits."""


class LoginLost(NotReady):
    """The connection to a login node is gone."""


class QueuedJob:
    """The job of one run, which `node` is asked about: its login node, or the name of one."""

    def __init__(self, pool: HostPool, node: str, run_id: str, run_flags: str) -> None:
        self._pool = pool
        self._node = node
        self._run_id = run_id
        self._flags = run_flags
        self._shown = ""

    def await_start(self, attempt: int = 0, *, cancels: bool) -> None:
        """Return once an attempt, or a later one, has begun on all nodes of the job.

        With `cancels`, a signal cancels the job; else it leaves it.

        Raises:
            NotReady: It never will.
            Interrupted: The user cancelled the job, or left it in the queue.
        """
        waits_since = time.monotonic()
        last_state = ""
        while True:
            try:
                answer = self._ask("job", "job")
                status: JobStatus = answer["status"]
                if answer["ready"] and answer["attempt"] >= attempt:
                    return
                self._check(answer, status)
                self._show(status.text)
                if status.state != last_state:
                    last_state = status.state
                    waits_since = time.monotonic()
                waited_s = time.monotonic() - waits_since
                self._pool.poll_for_stop(min(MAX_POLL_S, max(POLL_S, waited_s / 10)))
            except LoginLost as error:
                hints = self._next_commands()
                problem = Problem("", f"the job of run {self._run_id} is left in the queue", hints)
                raise NotReady([*error.problems, problem]) from None
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

    def _on_interrupt(self, error: Interrupted, *, cancels: bool) -> NoReturn:
        """Cancel the job, as a launch does; a closed terminal and `attach` leave it."""
        if not cancels or error.exit_code == SIGNAL_EXIT_BASE + signal.SIGHUP:
            self._leave(error)
        try:
            message = self.cancel()
        except NotReady as problem:
            self._leave(error, str(problem))
        raise Interrupted(error.exit_code, message) from None

    def _leave(self, error: Interrupted, why: str = "") -> NoReturn:
        message = f"the job of run {self._run_id} is left in the queue"
        if why:
            message = f"{why}\n{message}"
        lines = [message, *self._next_commands().splitlines()]
        raise Interrupted(error.exit_code, "\n  ".join(lines)) from None

    def _next_commands(self) -> str:
        return "\n".join(f"{this_program()} {verb} {self._flags}" for verb in ("attach", "stop"))


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
