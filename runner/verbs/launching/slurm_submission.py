"""Submission of a run to Slurm: its job, the wait in the queue, and the run as `attach` shows it.

A job needs no controller: the run on its nodes goes on without one, and any verb finds it.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from runner.control.attempt.stop import user_at_host
from runner.control.code.code_store import STORE, CodeStore
from runner.control.code.source import CodeSource, shipped_tasks
from runner.control.record import run_index
from runner.control.record.run_store import RunStore
from runner.control.rpc.bootstrap import job_words
from runner.control.rpc.host_code import whole_code
from runner.core.codec import encode
from runner.core.errors import SIGNAL_EXIT_BASE, Interrupted, NotReady, Problem, RunnerError
from runner.core.launch_request import LaunchRequest
from runner.core.model.facts import Facts, FactsRequest
from runner.core.model.run_info import RunInfo
from runner.core.planning.batch_script import batch_script
from runner.core.planning.readiness import workdir_problems
from runner.core.relaunch.handover import relaunch_context
from runner.core.shell import this_program
from runner.core.spec import Node, SlurmSpec, Spec
from runner.ui.console.console import open_console
from runner.ui.output import note, show
from runner.verbs.launching.attempts import launch_notes
from runner.verbs.shared.discovery import RunFinder
from runner.verbs.shared.following import follow
from runner.verbs.shared.found_run import FoundRun
from runner.verbs.shared.host_pool import HostPool, enqueue_signal, open_host_pool
from runner.verbs.shared.slurm_queue import (
    LoginLost,
    QueuedJob,
    ask_login,
)

REFUSED_KEYS = {
    "account": ("account", "sacctmgr show associations user=$USER"),
    "qos": ("qos", "sacctmgr show qos"),
    "partition": ("partition", "sinfo -o %R"),
    "feature": ("constraint", "sinfo -o '%N %f'"),
    "reservation": ("reservation", "scontrol show reservations"),
    "license": ("licenses", "scontrol show licenses"),
}
"""The keys below cluster.slurm by words of sbatch's errors, and what lists their legal values."""

MAX_EARLY_SIGNALS = 2
"""How many signals are kept for a run that has begun and is not followed yet."""


def run(request: LaunchRequest, source: CodeSource) -> int:
    """Submit the job of a run and follow it, or show its script; return the exit code."""
    spec = request.spec
    if "offline" in spec.dry_run:
        _show_script(spec, _script(request, spec.cluster.workdir, nonce="…"))
        return 0
    store = RunStore(request.run_dir)
    if not spec.dry_run:
        store.reserve()
    console = open_console(spec.ui, spec.console_ranks, [node.name for node in spec.nodes])
    try:
        with open_host_pool(spec, console) as pool:
            submission = Submission(request, source, store, pool)
            if not spec.dry_run:
                return submission.run()
            script = submission.script()
    except RunnerError:
        store.discard()
        raise
    finally:
        store.unlock()
    _show_script(spec, script)
    return 0


def _show_script(spec: Spec, script: str) -> None:
    show(json.dumps({"script": script}) if "json" in spec.dry_run else script)


class Submission:
    """The job of one run, from its submission to the end of the run."""

    def __init__(
        self, request: LaunchRequest, source: CodeSource, store: RunStore, pool: HostPool
    ) -> None:
        self._request, self._source, self._store, self._pool = request, source, store, pool
        self._console, self._login = pool.console, request.spec.nodes[0].name
        self._nonce = secrets.token_hex(16)
        self._here = str(Path.cwd())  # which may be removed meanwhile

    def script(self) -> str:
        """Return the script that would be submitted."""
        return _script(self._request, self._facts().workdir, self._nonce)

    def run(self) -> int:
        """Submit the job, and follow the run; return the exit code."""
        self._submit()
        if self._request.spec.detach:
            self._console.verdict(f"it goes on without this command: {self._flags('attach')}")
            return 0
        flags = self._request.run_flags(self._request.spec.run_id)
        job = QueuedJob(self._pool, self._login, self._request.spec.run_id, flags)
        job.await_start(cancels=True)
        self._store.unlock()
        return self._follow()

    def _follow(self) -> int:
        """Show the run, which has begun, to its end; signals before that are for the run."""
        found, signals = None, list[int]()
        while found is None:
            try:
                found = FoundRun(self._request, RunFinder(self._pool, self._request.selector))
            except Interrupted as error:
                signals.append(error.exit_code - SIGNAL_EXIT_BASE)
                if len(signals) > MAX_EARLY_SIGNALS:
                    commands = (f"\n  {self._flags(verb)}" for verb in ("attach", "stop"))
                    message = f"run {self._request.spec.run_id} goes on:{''.join(commands)}"
                    raise Interrupted(error.exit_code, message) from None
                self._pool.close_sessions()
        for signum in signals:
            enqueue_signal(self._pool.inbox, signum)
        return follow(found)

    def _submit(self) -> None:
        """Send the code, make the record, and submit the job."""
        facts = self._facts()
        by_node = {self._login: facts}
        if snapshot := self._source.snapshot_if_needed(by_node):
            self._pool.push(snapshot, by_node)
        here = self._here
        self._request = replace(self._request, launched_at=time.time(), launched_from=here)
        with self._store.required():
            found = self._store.create(self._request)
        self._request = replace(self._request, on_record=found)
        job_id = self._submit_job(facts)
        keeper = self._source.keep(CodeStore(Path(here, run_index.RUNS_FOLDER, STORE)))
        if keeper:
            keeper.finish(lambda: False)
        self._console.message(f"run {self._request.spec.run_id}: {self._place(job_id)}")

    def _place(self, job_id: str) -> str:
        is_local = self._request.spec.nodes[0].transport == "local"
        if not is_local or os.environ.get("SLURM_JOB_ID") != job_id:
            return f"submitted as job {job_id}"
        slurm, given = self._request.spec.slurm, os.environ.get("SLURM_JOB_NUM_NODES", "")
        asked = slurm.nnodes if slurm else 0
        fewer = f", which has {given} of {asked} nodes" if given and int(given) < asked else ""
        return f"in the allocation of job {job_id}{fewer}"

    def _facts(self) -> Facts:
        """Return what the login node says about itself; raise NotReady if it cannot serve."""
        for text in launch_notes(self._request, self._source):
            note(text)
        spec, code = self._request.spec, self._source.code
        if spec.slurm and spec.slurm.requeue and not spec.slurm.signal_before:
            note("at its time limit the job ends for good: that takes cluster.slurm.signal_before")

        def request(node: Node) -> FactsRequest:
            return FactsRequest(
                node=node.name,
                workdir=spec.cluster.workdir,
                tasks_hash=code.tasks_hash,
                release=code.release,
                skip_launch_facts=True,
            )

        return self._pool.collect_facts(request, workdir_problems)[self._login]

    def _submit_job(self, facts: Facts) -> str:
        """Return the id of the job."""
        request, spec = self._request, self._request.spec
        info = RunInfo(
            run_id=spec.run_id,
            cluster=spec.cluster.name,
            task=spec.task.name,
            launched_by=user_at_host(),
            launched_at=request.launched_at,
        )
        context = relaunch_context(spec, self._source.code, info, request.config_yaml, ())
        data: dict[str, Any] = {
            "run_id": spec.run_id,
            "nonce": self._nonce,
            "token": secrets.token_hex(16),
            "secrets": {name: secret.reveal() for name, secret in spec.secrets.items()},
            "context": encode(context),
            "script": _script(request, facts.workdir, self._nonce),
            "code_size": len(whole_code()),
        }
        payload = whole_code()  # then the tasks
        if spec.task.shipped_file and not facts.has_tasks:
            data["tasks"], payload = shipped_tasks().header(), payload + shipped_tasks().payload
        self._console.phase("submitting")
        try:
            answer = ask_login(self._pool, self._login, "submit", data, "submitted", payload)
        except LoginLost as lost:
            message = f"whether the job of run {spec.run_id} was submitted is not known"
            problem = Problem("", message, self._flags("stop"))
            raise NotReady([*lost.problems, problem]) from None
        except NotReady as error:
            raise NotReady([_with_key(each, spec.slurm) for each in error.problems]) from None
        return str(answer["job_id"])

    def _flags(self, verb: str) -> str:
        return f"{this_program()} {verb} {self._request.run_flags(self._request.spec.run_id)}"


def _with_key(problem: Problem, slurm: SlurmSpec | None) -> Problem:
    """Return a refusal of sbatch with the key that it is about, if that is known."""
    text = problem.message.lower()
    for word, (key, command) in REFUSED_KEYS.items():
        if word in text and (value := getattr(slurm, key, "")):
            hint = f"its value is {value!r}; on the login node, {command} lists what there is"
            return replace(problem, subject=f"cluster.slurm.{key}", hint=hint)
    return problem


def _script(request: LaunchRequest, workdir: str, nonce: str) -> str:
    spec, digest = request.spec, hashlib.sha256(whole_code()).hexdigest()
    return batch_script(spec, workdir, job_words(spec), nonce, digest)
