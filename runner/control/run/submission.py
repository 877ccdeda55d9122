"""Submission of a run to Slurm: the job whose first node launches it."""

from __future__ import annotations

import time
from dataclasses import asdict, replace
from pathlib import Path

from runner.control.code.code_store import STORE, CodeStore
from runner.control.code.source import CodeSource
from runner.control.record import run_index
from runner.control.record.file_names import JOB_FILE
from runner.control.record.run_store import RunStore
from runner.core.codec import encode
from runner.core.errors import NotReady, Problem
from runner.core.launch_request import LaunchRequest
from runner.core.model.plan import Plan
from runner.core.planning.slurm_job import ERR_FILE, OUT_FILE
from runner.core.spec import SlurmSpec
from runner.transport.srun import ask

SUBMIT_LIMIT_S = 60.0

KEYS = {
    "partition": ("partition", "sinfo -o %R"),
    "account": ("account", "sacctmgr show associations user=$USER"),
    "node count": ("nodes", "sinfo"),
}
"""What sets it, and what lists the legal values, by words of sbatch's errors."""


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
        **asdict(source.code),
    )
    begin = {**encode(plan), "job_id": ""}
    request = replace(request, launched_at=time.time(), launched_from=str(Path.cwd()))
    with store.required():
        store.write_request(request)
        store.write_json(JOB_FILE, begin)
        for name in (OUT_FILE, ERR_FILE):  # whoever looks in vain for a file sees it late on NFS
            store.write_text(name, "")
    if keeper := source.keep(CodeStore(Path.cwd() / run_index.RUNS_FOLDER / STORE)):
        keeper.finish(lambda: False)
    answer, problem = ask(["sbatch", "--parsable"], script, SUBMIT_LIMIT_S)
    if problem:  # it may have been taken all the same
        answer = ask(["squeue", "--noheader", f"--name={spec.run_id}", "--format=%i"])[0]
    last = (answer.strip().splitlines() or [""])[-1]  # sites print banners before it
    job_id = last.partition(";")[0]
    if not job_id.isdigit():
        raise NotReady([_refusal(problem or f"sbatch answered {last!r}", spec.cluster.slurm)])
    store.write_json(JOB_FILE, {**begin, "job_id": job_id})
    run_index.register(spec.run_id, store.folder)
    run_index.set_latest(store.folder)
    return job_id


def _refusal(text: str, slurm: SlurmSpec) -> Problem:
    """Return a refusal of sbatch with the key that it is about, if that is known."""
    for word, (key, command) in KEYS.items():
        if word in text.lower():
            hint = f"its value is {getattr(slurm, key)!r}; {command} lists what there is"
            return Problem(f"cluster.slurm.{key}", text, hint)
    return Problem("cluster.slurm", text)
