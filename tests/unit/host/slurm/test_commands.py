"""Commands of Slurm: what they print, and what becomes of one that is late or fails."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace

import pytest

from runner.core.model.slurm import JobStatus
from runner.host.process.event_loop import run_steps
from runner.host.slurm import commands
from runner.host.slurm.commands import Answer

Answers = Callable[..., list[list[str]]]


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Answers:
    """Has commands answer so; returns the words of those that are run."""
    asked: list[list[str]] = []

    def answer(out: str = "", code: int | None = 0, err: str = "") -> list[list[str]]:
        def run(argv: Sequence[str], _: float = 0.0) -> Generator[None, None, Answer]:
            asked.append([*argv])
            yield
            return Answer(code, out, err)

        monkeypatch.setattr(commands, "run", run)
        return asked

    return answer


def line(*fields: str) -> str:
    return commands.SEPARATOR.join(fields)


def test_jobs_in_the_queue(answers: Answers) -> None:
    """What Slurm has no word for is unknown; lines of a site are none of squeue's."""
    lines = [
        "Welcome to HPC, 2 jobs",
        line("7", "run-a", "PENDING", "Resources", "2026-01-02T03:04:05", ""),
        line("8", "a name | with, all", "RUNNING", "None", "2026-01-02T03:04:05", "n[1-2]"),
        line("9", "run-c", "PENDING", "(null)", "N/A", ""),
        line("10", "short", "PENDING"),
    ]
    asked = answers("\n".join(lines))
    jobs, problem = run_steps(commands.queued_jobs())
    start = "2026-01-02T03:04:05"
    assert jobs == [
        JobStatus("7", "PENDING", "Resources", start, name="run-a"),
        JobStatus("8", "RUNNING", "", start, "n[1-2]", name="a name | with, all"),
        JobStatus("9", "PENDING", name="run-c"),
    ]
    assert problem == ""
    assert asked[0][:3] == ["squeue", "--noheader", f"--user={os.getuid()}"]


SHOWN = (
    "JobId=7 JobName=run-a UserId=ada(1000) JobState={state} Reason={reason} Dependency=(null)"
    " Requeue=0 ExitCode={code} StartTime=2026-01-02T03:04:05 EndTime=Unknown PreemptTime={preempt}"
    " ReqNodeList=(null) ExcNodeList=(null) NodeList={nodes} Comment=run-a"
    " Command=/home/ada/x=y\n"
)


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        (
            ("FAILED", "NonZeroExitCode", "3:0", "None", "n[1-2]"),
            JobStatus("7", "FAILED", "NonZeroExitCode", nodes="n[1-2]", exit_code="3:0"),
        ),
        (
            ("COMPLETED", "None", "0:0", "2026-01-02T03:09:00", "n1"),
            JobStatus("7", "PREEMPTED", nodes="n1", exit_code="0:0"),
        ),
        (
            ("CANCELLED", "None", "0:15", "None", "(null)"),
            JobStatus("7", "CANCELLED", exit_code="0:15"),
        ),
    ],
    ids=["failed", "preempted, though its script ended first", "never started"],
)
def test_a_job_that_is_over(answers: Answers, fields: tuple[str, ...], status: JobStatus) -> None:
    """As scontrol shows it in one line."""
    names = ("state", "reason", "code", "preempt", "nodes")
    asked = answers("banner\n" + SHOWN.format(**dict(zip(names, fields, strict=True))))
    found = run_steps(commands.job("7"))
    assert found.start == "2026-01-02T03:04:05"
    assert found == replace(status, start=found.start, name="run-a")
    assert asked == [["scontrol", "--oneliner", "show", "job", "7"]]


def test_a_job_that_is_forgotten(answers: Answers) -> None:
    """Slurm knows no such id; that it does not answer is something else."""
    answers(code=1, err="slurm_load_jobs error: Invalid job id specified\n")
    assert run_steps(commands.job("7")) == JobStatus("7", "UNKNOWN")
    answers(code=1, err="slurm_load_jobs error: Unable to contact slurm controller\n")
    found = run_steps(commands.job("7"))
    assert (found.state, found.has_ended) == ("", False)
    assert "Unable to contact" in found.problem


def test_a_command_sees_no_enclosing_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """A shell in an allocation would submit with its options; SLURM_CONF says where Slurm is."""
    kept = {"SLURM_CONF": "/etc/slurm.conf", "SLURM": "1", "MY_SLURM_X": "1"}
    taken = ("SLURM_JOB_ID", "SBATCH_PARTITION", "SRUN_X", "SALLOC_X", "SQUEUE_FORMAT", "SCANCEL_X")
    for name, value in {**kept, **dict.fromkeys(taken, "1")}.items():
        monkeypatch.setenv(name, value)
    names = commands.environ()
    assert {name: names.get(name) for name in kept} == kept
    assert not names.keys() & {*taken}
    answer = run_steps(commands.run(["/bin/sh", "-c", "echo $SLURM_JOB_ID-$SLURM_CONF"]))
    assert answer.out == "-/etc/slurm.conf\n"
