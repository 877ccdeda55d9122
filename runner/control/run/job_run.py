"""Job run: a run whose launch is in a job of Slurm, as the machine with sbatch sees it.

The launch in the job writes the record of its run, which this machine shares with its nodes.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from runner.control.record import run_index
from runner.control.record.file_names import JOB_FILE, PLAN_FILE, RESULT_FILE
from runner.control.record.run_store import RunStore
from runner.control.run.hosts import SIGNALS
from runner.core.codec import decode
from runner.core.errors import Interrupted, NotReady, Problem, StopUnverified
from runner.core.launch_request import LaunchRequest
from runner.core.model.plan import Plan
from runner.core.model.results import Failure
from runner.core.outcome.first_failure import failure_text
from runner.core.outcome.verdict import FAILED_CODE, LOST, LOST_CODE, STOPPED, fold_events
from runner.core.planning.slurm_job import (
    ERR_FILE,
    IMPOSSIBLE_REASONS,
    OUT_FILE,
    Job,
)
from runner.core.protocol.events import ENDED_BY_SCHEDULER, TimedEvent, parse
from runner.core.protocol.paths import EVENTS_FILE
from runner.core.shell import this_program
from runner.transport.srun import ask, cancel, job_of

POLL_S = 0.3
MAX_PAUSE_S = 30.0
"""The longest pause between two questions to Slurm: it grows with the time that nothing changes."""

LAG_S = 60.0
KILLED_LAG_S = 5.0
"""For how long a disk that is shared may not show what another machine has written."""

OUTPUT_FAILED = "0:53"
"""The exit code of a job whose output could not be opened."""

STOP_MARGIN_S = 30.0
"""How much longer than the grace the launch in a job may take to end the run, and Slurm the job."""


def job_run(request: LaunchRequest, show: Callable[[str], None]) -> JobRun | None:
    """Return the run that a verb is about, if the record here says that a job was submitted."""
    job_id = _job_id(request)
    return None if job_id is None else JobRun(request, job_id, show)


def _job_id(request: LaunchRequest) -> str | None:
    try:
        content = json.loads((request.run_dir / JOB_FILE).read_bytes())
        return str(content["job_id"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def refuse_unbegun(request: LaunchRequest) -> None:
    """Raise NotReady for a run that its job has not begun."""
    job_id = _job_id(request)
    if job_id is not None and not (request.run_dir / PLAN_FILE).exists():
        message = f"run {request.spec.run_id} has not begun: {job_of(job_id).text}"
        raise NotReady([Problem("--run", message)])


class JobRun:
    """One run whose launch is in a job; `show` prints a line for the user."""

    def __init__(self, request: LaunchRequest, job_id: str, show: Callable[[str], None]) -> None:
        self.job_id = job_id
        self._show = show
        self.run_id = request.spec.run_id
        self._folder = request.run_dir
        self._grace_s = request.spec.grace_s
        self._flags = f"--run {self.run_id}"
        self._offsets = {OUT_FILE: 0, ERR_FILE: 0}
        self._state = ""
        self._shown = ""
        self._is_stopping = False

    def say(self, text: str) -> None:
        """Print what happens, once."""
        if text != self._shown:
            self._shown = text
            self._show(text)

    def follow(self, *, is_guest: bool, tail: int | None = None) -> int:
        """Show what the launch in the job prints until Slurm says that the job is over.

        Return its exit code. A signal stops the run, or cancels its job; that of a guest leaves it.

        Raises:
            NotReady: The run never begins.
            Interrupted: The user left it, or cancelled it before it began.
        """
        if tail is not None:
            self._skip_to(tail)
        with _raised_signals():
            while True:
                try:
                    return self._follow()
                except Interrupted as signalled:
                    if is_guest:
                        self.say(self._left_text())
                        return 0
                    self._on_signal(signalled)

    def _follow(self) -> int:
        changed_at = next_look = time.monotonic()
        while True:
            told = self._copy()
            now = time.monotonic()
            if told:  # perhaps its end
                next_look = min(next_look, now + 1.0)
            if now >= next_look:
                job = job_of(self.job_id)
                if job.state != self._state:
                    changed_at = now
                self._state = job.state or self._state
                if job.has_ended:
                    self._copy()
                    return self._exit_code(job)
                if job.state == "PENDING" and job.reason in IMPOSSIBLE_REASONS:
                    cancel(self.job_id)
                    why = IMPOSSIBLE_REASONS[job.reason]
                    hint = f"its reason was {job.reason}; job {self.job_id} is cancelled"
                    message = f"Slurm would never start the job: {why}"
                    raise NotReady([Problem("cluster.slurm", message, hint)])
                if job.state != "COMPLETING":
                    self.say(job.text)
                next_look = now + min(MAX_PAUSE_S, max(1.0, (now - changed_at) / 10))
            time.sleep(POLL_S)

    def _copy(self) -> bool:
        """Show what the launch has printed since the last look; return whether it told anything."""
        before = self._offsets[ERR_FILE]
        for name, stream in ((OUT_FILE, sys.stdout), (ERR_FILE, sys.stderr)):
            with contextlib.suppress(FileNotFoundError), (self._folder / name).open("rb") as file:
                file.seek(self._offsets[name])
                while data := file.read(1 << 16):
                    stream.flush()
                    stream.buffer.write(data)
                    stream.buffer.flush()
                    self._offsets[name] += len(data)
        return self._offsets[ERR_FILE] > before

    def _skip_to(self, tail: int) -> None:
        """Leave out what comes before the last lines of what was printed until now."""
        for name in self._offsets:
            with contextlib.suppress(FileNotFoundError):
                data = (self._folder / name).read_bytes()
                lines = data.splitlines(keepends=True)[-tail:]
                self._offsets[name] = len(data) - sum(map(len, lines))

    def _exit_code(self, job: Job) -> int:
        if (self._folder / PLAN_FILE).exists():
            code = self._end(job)
            deadline = time.monotonic() + LAG_S
            while not (self._copy() or self._offsets[ERR_FILE]) and time.monotonic() < deadline:
                time.sleep(POLL_S)  # its words come late: it always has some
            return code
        status, _, signum = job.exit_code.partition(":")
        has_refused = self._offsets[ERR_FILE] > 0 and signum == "0" and status in ("2", "3")
        if has_refused or not self._offsets[ERR_FILE]:
            shutil.rmtree(self._folder, ignore_errors=True)
        if has_refused:
            return int(status)  # it has said why
        hint = f"{sys.executable} and the runner must be there on the nodes, too"
        if job.exit_code == OUTPUT_FAILED:
            hint = f"{self._folder} must be on a disk that the nodes share with this machine"
        message = f"{job.text}; it ended before the run began"
        raise NotReady([Problem("cluster.slurm", message, "" if job.why_ended() else hint)])

    def complete(self) -> None:
        """Record how the run ended whose job is over, if its launch could not do so.

        Raises:
            NotReady: The job is not over, or ended before the run began.
        """
        if RunStore(self._folder).has_result:
            return
        job = job_of(self.job_id)
        if not job.has_ended:
            hint = f"{this_program()} attach {self._flags}"
            raise NotReady([Problem("", f"run {self.run_id} has not ended: {job.text}", hint)])
        if not (self._folder / PLAN_FILE).exists():
            raise NotReady([Problem("", f"run {self.run_id} never began: {job.text}")])
        self._end(job)

    def _end(self, job: Job) -> int:
        """Return the exit code of a run; record how it ended, if its launch could not do so."""
        store = RunStore(self._folder)
        plan = decode(Plan, json.loads((self._folder / PLAN_FILE).read_bytes()))
        last_end = self._folder / f"result.{plan.attempt}.json"
        with contextlib.suppress(FileNotFoundError):  # it is there if no other attempt has begun
            last_end.rename(self._folder / RESULT_FILE)
        was_killed = not job.exit_code.endswith(":0")
        deadline = time.monotonic() + (KILLED_LAG_S if was_killed else LAG_S)
        while not store.has_result and time.monotonic() < deadline:
            time.sleep(POLL_S)
        if store.has_result:
            return int(json.loads((self._folder / RESULT_FILE).read_bytes())["exit_code"])
        events = [parse(line) for line in (self._folder / EVENTS_FILE).read_text().splitlines()]
        timed = [TimedEvent(event.wall, event) for event in events if event.attempt == plan.attempt]
        began_at = timed[0].at if timed else time.time()
        verdict = fold_events(plan, timed, timed[-1].at - began_at if timed else 0.0)
        why = job.why_ended() or "its launch was killed"
        failure = Failure(plan.nodes[0].node, None, f"{ENDED_BY_SCHEDULER}: {why}")
        is_lost = job.state == "NODE_FAIL"
        verdict = replace(
            verdict,
            state=LOST if is_lost else STOPPED,
            exit_code=LOST_CODE if is_lost else FAILED_CODE,
            first_failure=verdict.first_failure or failure,
        )
        store.write_result(plan, verdict, began_at, None)
        self._show(f"first failure: {failure_text(verdict.first_failure or failure)}")
        self._show(f"  {this_program()} why {self._flags}")
        return verdict.exit_code

    def _on_signal(self, signalled: Interrupted) -> None:
        """Stop the run, or end the wait for it; return if there is an end to be seen."""
        self._state = job_of(self.job_id).state or self._state
        is_queued = self._state != "RUNNING" and not self._is_stopping
        if signalled.exit_code == 128 + signal.SIGHUP:
            raise Interrupted(signalled.exit_code, self._left_text()) from None
        if is_queued and self._is_left(signalled):
            raise Interrupted(signalled.exit_code, self._left_text()) from None
        if is_queued:
            raise Interrupted(signalled.exit_code, self.stop()) from None
        self._begin_stop(is_urgent=self._is_stopping)

    def _is_left(self, signalled: Interrupted) -> bool:
        """Ask at a terminal whether Ctrl-C leaves the job in the queue; once more says no."""
        is_asked = signalled.exit_code == 128 + signal.SIGINT and sys.stdin and sys.stdin.isatty()
        if not is_asked:
            return False
        self.say(f"cancel job {self.job_id}, or leave it in the queue? c or l, and Enter (c)")
        with contextlib.suppress(Interrupted):
            return sys.stdin.readline().strip().lower() in ("l", "leave")
        return False

    def _begin_stop(self, *, is_urgent: bool) -> None:
        """Have the launch end its run, and prove it; at the second time have Slurm do so."""
        self._is_stopping = True
        problem = cancel(self.job_id, *(() if is_urgent else ("--batch", "--signal=TERM")))
        if problem:
            self.say(f"job {self.job_id}: {problem}")

    def _left_text(self) -> str:
        where = "goes on" if self._state == "RUNNING" else "is left in the queue"
        hints = [f"{this_program()} {verb} {self._flags}" for verb in ("attach", "stop")]
        return "\n  ".join([f"job {self.job_id} of run {self.run_id} {where}", *hints])

    def stop(self) -> str:
        """End the run and its job; return what proves it.

        Raises:
            StopUnverified: Slurm does not say that nothing of the job is left.
        """
        job = job_of(self.job_id)
        if job.state == "RUNNING":
            self._begin_stop(is_urgent=False)
            job = self._await_end(self._grace_s + STOP_MARGIN_S)
        if not job.has_ended:
            self._begin_stop(is_urgent=True)
            job = self._await_end(2 * STOP_MARGIN_S)
        if not job.has_ended:
            message = f"{job.text}: Slurm has not ended it"
            raise StopUnverified([Problem(self.run_id, message, "ask the administrators")])
        if not (self._folder / PLAN_FILE).exists():
            shutil.rmtree(self._folder, ignore_errors=True)
            return f"run {self.run_id}: its job is cancelled; nothing of it had begun"
        with contextlib.suppress(OSError, ValueError, KeyError, NotReady):
            self.complete()
            result = json.loads((self._folder / RESULT_FILE).read_bytes())
            if not result["unverified"]:
                return f"run {self.run_id}: no process is left, as its nodes have proven"
        return f"run {self.run_id}: no process is left, as Slurm says of job {self.job_id}"

    def _await_end(self, limit_s: float) -> Job:
        deadline = time.monotonic() + limit_s
        while True:
            job = job_of(self.job_id)
            if job.has_ended or time.monotonic() >= deadline:
                return job
            time.sleep(POLL_S)


@contextlib.contextmanager
def _raised_signals() -> Iterator[None]:
    """Have every signal that asks this process to end raise Interrupted."""

    def interrupt(signum: int, _: object) -> None:
        raise Interrupted(128 + signum)

    before = {each: signal.getsignal(each) for each in SIGNALS}
    handled = [each for each in SIGNALS if before[each] != signal.SIG_IGN]  # nohup
    for each in handled:
        signal.signal(each, interrupt)
    try:
        yield
    finally:
        for each in handled:
            signal.signal(each, before[each])


def queue_lines() -> Sequence[str]:
    """Return how the jobs of runs stand that were submitted by this user and are not over."""
    columns = "%i\x1f%j\x1f%T\x1f%r\x1f%N"
    words = ["squeue", "--noheader", f"--user={os.getuid()}", f"--format={columns}"]
    answer, problem = ask(words)
    names = {*run_index.records().values()}
    lines = [f"Slurm does not answer: {problem}"] if problem else []
    for line in answer.splitlines():
        job_id, name, state, reason, nodes = line.split("\x1f")
        if name in names:
            lines.append(f"{name}: {Job(job_id, state, reason, nodes=nodes).text}")
    return lines
