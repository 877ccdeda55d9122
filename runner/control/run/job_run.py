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
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from runner.control.code.pool import STORE, CodePool
from runner.control.code.source import CodeKeeper, CodeSource, code_of
from runner.control.history.files import RecordFiles
from runner.control.history.run_reader import read_events
from runner.control.record import run_index
from runner.control.record.launch_record import JOB_FILE, PLAN_FILE, RESULT_FILE, record_content
from runner.control.record.run_store import RunStore
from runner.control.run.own_job import past_attempts
from runner.core.errors import SIGNAL_EXIT_BASE, Interrupted, NotReady, Problem, StopUnverified
from runner.core.launch_request import LaunchRequest
from runner.core.outcome.verdict import fold_events
from runner.core.planning.slurm_job import ERR_FILE, OUT_FILE, SIZES_FILE, Job
from runner.core.shell import this_program
from runner.core.wire.codec import decode
from runner.core.wire.events import TimedEvent
from runner.core.wire.plan import Plan
from runner.core.wire.states import (
    FAILED_CODE,
    LOST,
    LOST_CODE,
    STOPPED,
    Reason,
    ReasonKind,
)
from runner.transport.srun import ask, cancel, job_of

SUBMIT_LIMIT_S = 60.0
POLL_S = 0.3
MAX_PAUSE_S = 30.0
"""The longest pause between two questions to Slurm: it grows with the time that nothing changes."""

LAG_S = 60.0
KILLED_LAG_S = 5.0
"""For how long a shared disk may not show what a launch has written. One that was killed may have
written nothing."""

OUTPUT_FAILED = "0:53"  # the exit code of a job whose output could not be opened
STOP_MARGIN_S = 30.0
"""How much longer than the grace the launch in a job may take to end the run, and Slurm the job."""


def submit(request: LaunchRequest, source: CodeSource, store: RunStore, script: str) -> str:
    """Write what the launch in the job begins with, and submit the job; return its id."""
    spec = request.spec
    plan = Plan(  # as far as it is known
        run_id=spec.run_id,
        cluster=spec.cluster.name,
        task=spec.task.name,
        attempt=0,
        nodes=(),
        world_size=0,
        backend="",
        master_addr="",
        master_port=0,
        **asdict(code_of(request, source)),
    )
    request = replace(request, launched_at=time.time(), launched_from=str(Path.cwd()))
    with store.required():
        store.write_request(request)
        store.write_json(JOB_FILE, record_content(plan, request))
        for name in (OUT_FILE, ERR_FILE):  # whoever looks in vain for a file sees it late on NFS
            store.write_text(name, "")
    if source.code.release:
        CodeKeeper(CodePool(Path.cwd() / run_index.RUNS_FOLDER / STORE), source).finish()
    answer, problem = ask(["sbatch", "--parsable"], script, SUBMIT_LIMIT_S)
    if problem:  # it may have been taken all the same
        answer, _ = ask(["squeue", "--noheader", f"--name={spec.run_id}", "--format=%i"])
    last = (answer.strip().splitlines() or [""])[-1]  # sites print banners before it
    job_id = last.partition(";")[0]
    if not job_id.isdigit():
        hint = "sinfo lists partitions; sacctmgr show associations user=$USER lists accounts"
        problem = problem or f"sbatch answered {last!r}"
        raise NotReady([Problem("cluster.slurm", problem, hint)])
    store.write_json(JOB_FILE, {**record_content(plan, request), "job_id": job_id})
    run_index.register(spec.run_id, store.folder)
    run_index.set_latest(store.folder)
    return job_id


def job_run(request: LaunchRequest, show: Callable[[str], None] = print) -> JobRun | None:
    """Return the run that a verb is about, if the record here says that a job was submitted."""
    try:
        content = json.loads((request.run_dir / JOB_FILE).read_bytes())
        return JobRun(request, str(content["job_id"]), show)
    except (OSError, ValueError, KeyError, TypeError):
        return None


class JobRun:
    """One run whose launch is in a job; `show` prints a line for the user."""

    def __init__(self, request: LaunchRequest, job_id: str, show: Callable[[str], None]) -> None:
        self.job_id = job_id
        self._show = show
        self.run_id = request.spec.run_id
        self._folder = request.run_dir
        self._store = RunStore(request.run_dir)
        self._grace_s = request.spec.grace_s
        self._flags = f"--run {self.run_id}"
        self._offsets = {OUT_FILE: 0, ERR_FILE: 0}
        self._shown = ""
        self._is_stopping = False

    @property
    def _has_begun(self) -> bool:
        return (self._folder / PLAN_FILE).exists()

    def require_begun(self) -> None:
        if not self._has_begun:
            message = f"run {self.run_id} has not begun: {job_of(self.job_id).text}"
            raise NotReady([Problem("--run", message)])

    def say(self, text: str) -> None:
        if text != self._shown:
            self._shown = text
            self._show(text)

    def follow(self, *, is_guest: bool, tail: int | None = None) -> int:
        """Show what the launch in the job prints until Slurm says that the job is over.

        Return its exit code, or raise NotReady if it never begins. A signal stops the run, or
        cancels its job; that of a guest leaves it.
        """

        def interrupt(signum: int, _: object) -> None:
            raise Interrupted(SIGNAL_EXIT_BASE + signum)

        for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(signum) != signal.SIG_IGN:  # nohup
                signal.signal(signum, interrupt)
        if tail is not None:
            self._skip_to(tail)
        while True:
            try:
                return self._follow()
            except Interrupted as signalled:
                if is_guest:
                    self.say(self._left_text())
                    return 0
                self._on_signal(signalled.exit_code)

    def _follow(self) -> int:
        pause_s = 1.0
        looked_at = float("-inf")
        while True:
            if self._copy():  # perhaps its end
                pause_s = 1.0
            if time.monotonic() - looked_at > pause_s:
                looked_at = time.monotonic()
                pause_s = min(MAX_PAUSE_S, 1.1 * pause_s)
                job = job_of(self.job_id)
                if job.has_ended:
                    self._copy()
                    return self._exit_code(job)
                if job.state != "COMPLETING":
                    self.say(job.text)
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
        if self._has_begun:
            code = self._end(job)
            self._copy()
            return code
        has_words = self._offsets[ERR_FILE] > 0
        has_refused = has_words and job.exit_code in ("2:0", "3:0")
        if has_refused or not has_words:
            shutil.rmtree(self._folder, ignore_errors=True)
        if has_refused:
            return int(job.exit_code[0])  # it has said why
        hint = f"{sys.executable} and the runner must be there on the nodes, too"
        if job.exit_code == OUTPUT_FAILED:
            hint = f"{self._folder} must be on a disk that the nodes share with this machine"
        message = f"{job.text}; it ended before the run began"
        raise NotReady([Problem("cluster.slurm", message, "" if job.why_ended() else hint)])

    def _is_whole(self) -> bool:
        """Return whether all is there that the launch has printed, as it says itself."""
        try:
            sizes = json.loads((self._folder / SIZES_FILE).read_bytes())
            return all((self._folder / name).stat().st_size >= sizes[name] for name in sizes)
        except (OSError, ValueError):
            return False

    def complete(self) -> None:
        """Record how the run ended, if its launch could not do so; raise NotReady if it has not."""
        if self._store.has_result:
            return
        job = job_of(self.job_id)
        if not job.has_ended:
            hint = f"{this_program()} attach {self._flags}"
            raise NotReady([Problem("", f"run {self.run_id} has not ended: {job.text}", hint)])
        self.require_begun()
        self._end(job)

    def _end(self, job: Job) -> int:
        """Return the exit code of a run; record how it ended, if its launch could not do so."""
        store = self._store
        plan = decode(Plan, json.loads((self._folder / PLAN_FILE).read_bytes()))
        last_end = self._folder / f"result.{plan.attempt}.json"
        with contextlib.suppress(FileNotFoundError):  # it is there if no other attempt has begun
            last_end.rename(self._folder / RESULT_FILE)
        lag_s = LAG_S if job.exit_code.endswith(":0") else KILLED_LAG_S
        deadline = time.monotonic() + lag_s
        while not (store.has_result and self._is_whole()) and time.monotonic() < deadline:
            time.sleep(POLL_S)
        if store.has_result:
            return store.read_result()[1].exit_code
        events = read_events(RecordFiles(self._folder))
        timed = [TimedEvent(event.wall, event) for event in events if event.attempt == plan.attempt]
        times = [each.at for each in timed] or [time.time()]
        past = past_attempts(self._folder)[:-1]
        verdict = fold_events(plan, timed, times[-1] - times[0], past)
        failure = verdict.first_failure
        if failure is None:
            why = job.why_ended() or "its launch was killed"
            failure = Reason(ReasonKind.SCHEDULER, plan.nodes[0].node, detail=why)
        is_lost = job.state == "NODE_FAIL"
        verdict = replace(
            verdict,
            state=LOST if is_lost else STOPPED,
            exit_code=LOST_CODE if is_lost else FAILED_CODE,
            first_failure=failure,
        )
        store.write_result(plan, verdict, times[0], None)
        self._show(f"first failure: {failure.text}\n  {this_program()} why {self._flags}")
        return verdict.exit_code

    def _on_signal(self, exit_code: int) -> None:
        """Stop the run, or end the wait for it; return if there is an end to be seen."""
        if exit_code == SIGNAL_EXIT_BASE + signal.SIGHUP:
            raise Interrupted(exit_code, self._left_text())
        if self._is_stopping or not job_of(self.job_id).is_queued:
            self._begin_stop(is_urgent=self._is_stopping)
        elif exit_code == SIGNAL_EXIT_BASE + signal.SIGINT and self._is_left():
            raise Interrupted(exit_code, self._left_text())
        else:
            raise Interrupted(exit_code, self.stop())

    def _is_left(self) -> bool:
        """Ask at a terminal whether Ctrl-C leaves the job in the queue; once more says no."""
        if not (sys.stdin and sys.stdin.isatty()):
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
        where = "is left in the queue" if job_of(self.job_id).is_queued else "goes on"
        hints = [f"{this_program()} {verb} {self._flags}" for verb in ("attach", "stop")]
        return "\n  ".join([f"job {self.job_id} of run {self.run_id} {where}", *hints])

    def stop(self) -> str:
        """End the run and its job; return what proves it, or raise StopUnverified."""
        job = job_of(self.job_id)
        for is_urgent in (False, True):
            if job.has_ended or not (is_urgent or job.state == "RUNNING"):
                continue
            self._begin_stop(is_urgent=is_urgent)
            limit_s = 2 * STOP_MARGIN_S if is_urgent else self._grace_s + STOP_MARGIN_S
            deadline = time.monotonic() + limit_s
            while time.monotonic() < deadline:
                job = job_of(self.job_id)
                if job.has_ended:
                    break
                time.sleep(POLL_S)
        if not job.has_ended:
            message = f"{job.text}: Slurm has not ended it"
            raise StopUnverified([Problem(self.run_id, message, "ask the administrators")])
        if not self._has_begun:
            shutil.rmtree(self._folder, ignore_errors=True)
            return f"run {self.run_id}: its job is cancelled; nothing of it had begun"
        with contextlib.suppress(OSError, ValueError, NotReady):
            self.complete()
            if not self._store.read_result()[1].unverified:
                return f"run {self.run_id}: no process is left, as its nodes have proven"
        return f"run {self.run_id}: no process is left, as Slurm says of job {self.job_id}"


def queue_lines() -> Sequence[str]:
    """Return how the jobs of runs stand that were submitted by this user and are not over."""
    words = ["squeue", "--noheader", f"--user={os.getuid()}", "--format=%j: job %i is %T %R"]
    answer, problem = ask(words)
    names = {*run_index.records().values()}
    lines = [line for line in answer.splitlines() if line.partition(":")[0] in names]
    return [f"Slurm does not answer: {problem}"] if problem else lines
