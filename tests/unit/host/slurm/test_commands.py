"""Commands of Slurm: what they print, and what becomes of one that is late or fails."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from runner.core.model.slurm import JobStatus
from runner.host.process.event_loop import run_steps
from runner.host.slurm import commands
from runner.host.slurm.commands import Answer, words_of

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
    """A line of squeue."""
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


@pytest.mark.parametrize(
    ("code", "err", "problem"),
    [
        (0, "warning: old", ""),
        (1, "note\nsqueue: error: Unable to contact\n\n", "squeue: error: Unable to contact"),
        (1, "", "?"),
        (None, "", "it did not answer in time"),
        (None, "squeue took more than 20 s", "squeue took more than 20 s"),
    ],
)
def test_why_the_queue_is_not_known(
    answers: Answers, code: int | None, err: str, problem: str
) -> None:
    """The last line of what it says; a job that is not listed then may be there."""
    answers("", code, err)
    assert run_steps(commands.queued_jobs()) == ([], problem)


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
            ("COMPLETED", "None", "0:0", "None", "n1"),
            JobStatus("7", "COMPLETED", nodes="n1", exit_code="0:0"),
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
    ids=["failed", "completed", "preempted, though its script ended first", "never started"],
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


def test_states_of_steps(answers: Answers) -> None:
    """Of a job and its steps, by the accounting; none where a site has no such thing."""
    answers("CANCELLED by 1000\nOUT_OF_MEMORY\n\nCOMPLETED\n")
    assert run_steps(commands.step_states("7")) == ["CANCELLED", "OUT_OF_MEMORY", "COMPLETED"]
    answers("COMPLETED\n", 1, "Slurm accounting storage is disabled")
    assert run_steps(commands.step_states("7")) == []


def test_steps_that_are_on(answers: Answers) -> None:
    """Of one name, with why they are not known."""
    lines = (f"{step}{commands.SEPARATOR}{name}\n" for step, name in (("7.0", "a"), ("7.1", "b")))
    asked = answers("".join(lines))
    assert run_steps(commands.steps("7", "b")) == (["7.1"], "")
    assert "--jobs=7" in asked[0]
    answers(code=None)
    assert run_steps(commands.steps("7", "b")) == ([], "it did not answer in time")


@pytest.mark.parametrize(
    ("out", "words"),
    [
        ("4711\n", ["4711"]),
        ("4711;cluster\n", ["4711", "cluster"]),
        ("Dear users!\nMaintenance: 2026\n\n4711\n\n", ["4711"]),
        ("", [""]),
    ],
)
def test_the_id_of_a_new_job(out: str, words: list[str]) -> None:
    """Sites print banners before sbatch's answer."""
    assert words_of(out) == words


def test_a_setting_of_the_site() -> None:
    """By its whole name; one that it lacks is ""."""
    text = "Configuration data as of 2026\nKillWait                = 30 sec\nProctrackType = x=y\n"
    assert commands.setting(text, "KillWait") == "30 sec"
    assert commands.setting(text, "ProctrackType") == "x=y"
    assert commands.setting(text, "Wait") == ""


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


def test_how_a_command_ends() -> None:
    """With its code and both outputs, however they are encoded."""
    script = "printf 'a\\377\\n'; echo wrong >&2; exit 3"
    answer = run_steps(commands.run(["/bin/sh", "-c", script]))
    assert answer == Answer(3, "a\ufffd\n", "wrong\n")
    assert answer.problem == "wrong"


def test_a_command_that_takes_too_long_is_ended() -> None:
    """It has no code; what it said so far is why, or how long it was waited for."""
    answer = run_steps(commands.run(["/bin/sh", "-c", "echo busy >&2; exec sleep 60"], 0.05))
    assert answer == Answer(None, "", "busy\n")
    answer = run_steps(commands.run(["/bin/sleep", "60"], 0.05))
    assert answer.problem == "/bin/sleep took more than 0.05 s"


def test_a_program_that_is_not_there() -> None:
    """It has no code, and a problem that names it: nothing was learned."""
    answer = run_steps(commands.run(["/nowhere/squeue"]))
    assert answer.code is None
    assert "/nowhere/squeue" in answer.problem


def test_a_host_that_is_no_login_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first program that is missing is named."""
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in ("sbatch", "squeue", "scancel", "scontrol"):
        assert commands.missing_program() == name
        (tmp_path / name).touch(0o755)
    assert commands.missing_program() == ""
