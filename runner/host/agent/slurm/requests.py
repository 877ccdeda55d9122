"""Slurm requests, on a login node: submit the job of a run, and say how it stands."""

from __future__ import annotations

import os
import time
from typing import Any, Dict, Generator, List, Tuple

from runner.core.codec import encode
from runner.core.errors import NotReady
from runner.core.model.slurm import UNSEEN, JobStatus
from runner.core.protocol.frames import Frame
from runner.core.protocol.paths import JobPaths, is_run_id
from runner.host.agent.server import RequestHandler
from runner.host.process import procfs
from runner.host.process.event_loop import Steps, pause, run_steps
from runner.host.slurm import allocation, commands, job, shared_files
from runner.host.slurm.job_folder import last_start, remove_secrets, write_files
from runner.host.storage.permissions import private_folder
from runner.host.storage.release_store import remove_tree
from runner.host.storage.run_folder import write_atomic
from runner.host.storage.task_store import store_tasks

OUTPUT_FAILED = "0:53"
"""The exit code of a job whose log Slurm could not open."""

POLL_S = 0.5  # how often we look again

NOT_BEGUN = ("", str(NotReady.exit_code), "126", "127")
"""The exit codes of a script that has begun no run: bash(1) has the last ones for a Python that it
cannot start."""

MAX_LOG = 2000  # bytes of a job's own output that are shown


class Handler(RequestHandler):
    """The jobs of this user."""

    def on_submit(self, frame: Frame) -> Steps:
        """Write what the job needs into the folder of its run, and submit it."""
        data, workdir = frame.data, self.context.workdir
        paths = self._paths(frame)
        if os.path.lexists(paths.run):
            raise ValueError(f"there is a run {data['run_id']} in {workdir} already")
        if program := commands.missing_program():
            host = os.uname().nodename
            raise ValueError(f"there is no {program} on the PATH of {host}: is it a login node?")
        config = yield from commands.run(["scontrol", "show", "config"])
        if config.problem:
            raise ValueError(f"Slurm does not answer: {config.problem}")
        if data.get("tasks"):
            store_tasks(workdir, data["tasks"], frame.payload[data["code_size"] :])
        private_folder(workdir, "runs")
        os.mkdir(paths.run, 0o700)
        try:
            write_files(paths, data, _site_settings(config.out))
            with open(paths.code, "xb") as file:
                file.write(frame.payload[: data["code_size"]])
            if job_id := os.environ.get("SLURM_JOB_ID", ""):
                allocation.start_script(paths)
            else:
                job_id = yield from _submit(paths, data["run_id"])
        except BaseException as error:
            _undo(paths, is_taken=isinstance(error, GeneratorExit))  # the controller has left
            raise
        write_atomic(paths.job_id, job_id)
        self.context.answer(frame, "submitted", job_id=job_id)

    def on_job(self, frame: Frame) -> Steps:
        """Tell how a job stands; with its log, if it is over and no run has begun.

        A job that can never start is cancelled: Slurm would keep it for ever.
        """
        paths = self._paths(frame)
        found = yield from job.status(paths)
        problems, attempt, ready = _orders(paths, is_over=found.has_ended)
        deadline = time.monotonic() + shared_files.LAG_S
        wrote = has_begun(found) and bool(procfs.read_text(last_start(paths).nodes))
        while not (ready or problems) and wrote and time.monotonic() < deadline:
            yield from pause(POLL_S)  # a disk may take its time to show what its nodes wrote
            problems, attempt, ready = _orders(paths, is_over=True)
        if found.is_impossible:
            found = yield from job.status(paths, fresh_s=0.0)  # it may have begun meanwhile
            if found.is_impossible:
                yield from job.cancel(paths)
        log = ""
        if found.has_ended and not ready:
            log = _explain(paths, found)
            remove_secrets(paths, found)
        self.context.answer(
            *(frame, "job"),
            status=encode(found),
            ready=ready,
            attempt=attempt,
            problems=problems,
            log=log,
        )

    def on_cancel_job(self, frame: Frame) -> Steps:
        """End a job, and answer once nothing of it is left; refuse if that cannot be told."""
        paths = self._paths(frame)
        if problem := (yield from job.cancel(paths)):
            raise ValueError(problem)
        _, _, has_begun = _orders(paths, is_over=True)
        self.context.answer(frame, "job_cancelled", has_begun=has_begun)

    def _paths(self, frame: Frame) -> JobPaths:
        run_id = frame.data["run_id"]
        if not is_run_id(run_id):
            raise ValueError(f"{run_id!r} is no run")
        return JobPaths(self.context.workdir, run_id)


def has_begun(ended: JobStatus) -> bool:
    """Return whether a job that is over has begun its run, by the exit code of our script."""
    code, _, signum = ended.exit_code.partition(":")
    return ended.has_ended and signum == "0" and code not in NOT_BEGUN


def _undo(paths: JobPaths, *, is_taken: bool) -> None:
    """Remove the files of a run that is not submitted; its job, too, if there may be one."""
    if is_taken:
        name = f"--name={os.path.basename(paths.run)}"
        run_steps(commands.run(["scancel", f"--user={os.getuid()}", name]))
    run_steps(remove_tree(paths.run))


def _site_settings(config: str) -> Dict[str, Any]:
    """Return the settings of `scontrol show config`, and of this shell, that a job depends on."""
    kill_wait = commands.setting(config, "KillWait").split()
    return {
        "kill_wait_s": float(kill_wait[0]) if kill_wait else 30.0,
        "proctrack": commands.setting(config, "ProctrackType"),
        "is_shared": "SLURM_JOB_ID" in os.environ,
    }


def _submit(paths: JobPaths, run_id: str) -> Generator[None, None, str]:
    """Submit the script of a run; return the id of its job, or raise ValueError."""
    argv = ["sbatch", "--parsable", f"--chdir={paths.root}", paths.script]
    answer = yield from commands.run(argv, commands.SUBMIT_LIMIT_S)
    job_id = commands.words_of(answer.out)[0]
    if answer.code == 0 and job_id.isdigit():
        return job_id
    queued, unknown = yield from commands.queued_jobs()  # it may have been taken all the same
    if taken := next((each.job_id for each in queued if each.name == run_id), ""):
        return taken
    problem = answer.problem or f"sbatch answered {answer.out.strip()[:200]!r}"
    if unknown:
        problem += f"; if it took the job all the same, scancel --name={run_id} ends it"
    raise ValueError(problem)


def _orders(paths: JobPaths, *, is_over: bool) -> Tuple[List[Any], int, bool]:
    """Return what keeps the run from starting, its attempt, and whether all nodes have begun it.

    They never will where the job `is_over`: what they have recorded by then is all.
    """
    start = last_start(paths)
    orders = shared_files.read(start.orders) or {}
    parts = orders.get("orders", {})
    begun = [shared_files.read(start.begun(node)) is not None for node in parts]
    attempt = max((int(part["attempt"]) for part in parts.values()), default=0)
    return (
        list(orders.get("problems", ())),
        attempt,
        bool(begun) and (all(begun) or (is_over and any(begun))),
    )


def _explain(paths: JobPaths, ended: JobStatus) -> str:
    """Return what a job has written that is over and began no run, or why it could not."""
    if ended.exit_code == OUTPUT_FAILED:
        where = f" on {ended.nodes}" if ended.nodes else ""
        return f"its log could not be written{where}: {UNSEEN.format(paths.root)}"
    nodes = procfs.read_text(last_start(paths).nodes).split()
    texts = [_read(paths.log), *(_read(last_start(paths).log(node)) for node in nodes)]
    return "\n".join(dict.fromkeys(text.strip() for text in texts if text.strip()))[-MAX_LOG:]


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
