"""Commands of Slurm on a login node, each with a deadline: an answer that is late is none.

Without its controller they take 9 s to say so, with a wrong configuration a minute.
"""

from __future__ import annotations

import functools
import os
import re
import subprocess
from typing import Dict, Generator, List, NamedTuple, Optional, Sequence, Tuple

from runner.core.model.slurm import UNKNOWN, JobStatus
from runner.host.process.bounded_child import BoundedChild, find_program, report_facts, wait_all

LIMIT_S = 20.0
SUBMIT_LIMIT_S = 60.0
SEPARATOR = "\x1f"
_QUEUE_FIELDS = ("%i", "%j", "%T", "%r", "%S", "%N")
_JOB_VARIABLES = ("SLURM_", "SBATCH_", "SRUN_", "SALLOC_", "SQUEUE_", "SCANCEL_")
"""Prefixes of variables of an enclosing job, or of a site, that would change what a command does.

SLURM_CONF is none of them.
"""


class Answer(NamedTuple):
    """What a command answered; its `code` is None if it did not end in time."""

    code: Optional[int]
    out: str
    err: str

    @property
    def problem(self) -> str:
        """Why it failed, in its own words; "" if it did not."""
        if self.code == 0:
            return ""
        lines = [line for line in self.err.strip().splitlines() if line.strip()]
        return lines[-1] if lines else "it did not answer in time" if self.code is None else "?"


Commands = Generator[None, None, Answer]


def environ() -> Dict[str, str]:
    """Return our environment without what an enclosing job has put into it."""
    return {
        name: value
        for name, value in os.environ.items()
        if name == "SLURM_CONF" or not name.startswith(_JOB_VARIABLES)
    }


def run(argv: Sequence[str], limit_s: float = LIMIT_S) -> Commands:
    """Run a command, in steps."""
    child = BoundedChild(functools.partial(_run, argv, limit_s), limit_s + 1)
    try:
        yield from wait_all([child])
    finally:
        child.kill()
    report = child.report()
    if not report:
        return Answer(None, "", child.text)
    return Answer(report["code"], report["out"], report["err"])


def _run(argv: Sequence[str], limit_s: float) -> None:
    try:
        done = subprocess.run(
            argv, capture_output=True, timeout=limit_s, env=environ(), check=False
        )
    except subprocess.TimeoutExpired as late:
        err = (late.stderr or b"").decode(errors="replace")
        report_facts(code=None, out="", err=err or f"{argv[0]} took more than {limit_s:g} s")
        return
    out, err = (text.decode(errors="replace") for text in (done.stdout, done.stderr))
    report_facts(code=done.returncode, out=out, err=err)


def missing_program() -> str:
    """Return the name of a program of Slurm that is not on the PATH, "" for none."""
    for name in ("sbatch", "squeue", "scancel", "scontrol"):
        if not find_program(name, dict(os.environ)):
            return name
    return ""


def queued_jobs(limit_s: float = LIMIT_S) -> Generator[None, None, Tuple[List[JobStatus], str]]:
    """Return this user's jobs that are not over, and why they are not known."""
    columns = SEPARATOR.join(_QUEUE_FIELDS)
    argv = ["squeue", "--noheader", f"--user={os.getuid()}", "-o", columns]
    answer = yield from run(argv, limit_s)
    jobs = []
    for line in answer.out.splitlines():
        words = line.split(SEPARATOR)
        if len(words) == len(_QUEUE_FIELDS):
            job_id, name, state, reason, start, nodes = words
            jobs.append(JobStatus(job_id, state, _known(reason), _known(start), nodes, name=name))
    return jobs, answer.problem


def _known(text: str) -> str:
    return "" if text in ("None", "N/A", "(null)", "Unknown") else text


def job(job_id: str) -> Generator[None, None, JobStatus]:
    """Return what the controller, or else the accounting, says of a job that is not queued."""
    answer = yield from run(["scontrol", "--oneliner", "show", "job", job_id])
    if answer.code == 0:
        fields = dict(word.partition("=")[::2] for word in answer.out.split() if "=" in word)
        is_preempted = _known(fields.get("PreemptTime", ""))  # its script may have ended first
        return JobStatus(
            job_id=job_id,
            state="PREEMPTED" if is_preempted else fields.get("JobState", ""),
            reason=_known(fields.get("Reason", "")),
            start=_known(fields.get("StartTime", "")),
            nodes=_known(fields.get("NodeList", "")),
            exit_code=fields.get("ExitCode", ""),
            name=fields.get("JobName", ""),
        )
    if "Invalid job id" in answer.err:
        return JobStatus(job_id, state=UNKNOWN)
    return JobStatus(job_id, problem=answer.problem)


def restart_count(job_id: str) -> Generator[None, None, int]:
    """Return how often Slurm has decided to start a job again; 0 if that is not known."""
    answer = yield from run(["scontrol", "--oneliner", "show", "job", job_id])
    found = re.search(r"\bRestarts=(\d+)", answer.out)
    return int(found[1]) if found else 0


def steps(job_id: str, name: str) -> Generator[None, None, Tuple[List[str], str]]:
    """Return the steps of a job with this name that are on, and why they are not known."""
    columns = f"%i{SEPARATOR}%j"
    answer = yield from run(["squeue", "--steps", "--noheader", f"--jobs={job_id}", "-o", columns])
    found = (line.strip().split(SEPARATOR) for line in answer.out.splitlines())
    return [words[0] for words in found if words[1:] == [name]], answer.problem


def step_states(job_id: str) -> Generator[None, None, List[str]]:
    """Return the states of a job and its steps, as the accounting has them; [] without one."""
    argv = ["sacct", "--noheader", "--parsable2", f"--jobs={job_id}", "--format=State"]
    answer = yield from run(argv)
    lines = answer.out.splitlines() if answer.code == 0 else []
    return [line.split()[0] for line in lines if line.split()]


def setting(text: str, name: str) -> str:
    """Return a setting in what `scontrol show config` prints, "" if it is not there."""
    for line in text.splitlines():
        key, _, value = line.partition("=")
        if key.strip() == name:
            return value.strip()
    return ""


def words_of(lines: str) -> List[str]:
    """Return the last line of a text as words: sites print banners before an answer."""
    return (lines.strip().splitlines() or [""])[-1].split(";")
