"""Results of child processes: setup, interpreter, GPUs."""

from __future__ import annotations

import json

import pytest

from runner.core.model.facts import Gpu, GpuProcess, Interpreter
from runner.host.facts import interpreter, setup
from runner.host.gpu import query
from runner.host.process import bounded_child

MARK = "\x02runner-python\x03"
LINES = ("module load cuda", "source ~/venv/bin/activate", "export A=1")


class Ended(bounded_child.BoundedChild):
    """A child that never ran."""

    def __init__(
        self, report: bytes = b"", output: str = "", code: int = 0, *, late: bool = False
    ) -> None:
        self.raw_report = report
        self.output = output.encode()
        self.code = code
        self.timed_out = late
        self.limit_s = 15.0


def told(**facts: object) -> bytes:
    """Return a report as `tell` writes it."""
    return json.dumps(facts).encode() + b"\n"


def test_the_environment_after_setup_is_what_the_lines_made_of_it() -> None:
    """Functions and line breaks are kept; bash's own bookkeeping is as it was before."""
    before = {"PATH": "/bin", "PWD": "/root", "GONE": "1"}
    report = (
        b"done\0PATH=/venv/bin:/bin\0A=1\n2\0BASH_FUNC_module%%=() {  echo m\n}\0"
        b"SHLVL=1\0PWD=/tmp\0OLDPWD=/root\0_=/usr/bin/env\0__runner_text=x\0"
    )

    ended, environ = setup.result(Ended(report, "loaded cuda\n"), LINES, before)

    assert (ended.exit_code, ended.output) == (0, "loaded cuda")
    assert environ == {
        "PATH": "/venv/bin:/bin",
        "PWD": "/root",
        "A": "1\n2",
        "BASH_FUNC_module%%": "() {  echo m\n}",
    }


@pytest.mark.parametrize(
    ("child", "code", "note"),
    [
        (
            Ended(b"failed\x001\x001\0", "no such file\n", 1),
            1,
            "no such file\nsetup line 2 (source ~/venv/bin/activate) ended with exit code 1",
        ),
        (Ended(code=-11), 139, "the setup ended with exit code 139"),
        (
            Ended(),
            1,
            "the setup ended its shell (exit, exec): its environment is not known",
        ),
        (Ended(code=-9, late=True), -1, "the setup did not end within 15 s"),
    ],
)
def test_a_failed_setup_says_how(child: Ended, code: int, note: str) -> None:
    """Its code is never 0, its last line says what happened, and our environment stays."""
    ended, environ = setup.result(child, LINES, {"A": "0"})

    assert (code, note, {"A": "0"}) == (ended.exit_code, ended.output, environ)


VERSION_FILES = [
    (
        "__version__ = '1.13.1+cu117'\ndebug = False\ncuda = '11.7'\nhip = None\n",
        "1.13.1+cu117",
        "11.7",
    ),
    (
        "__version__ = '2.8.0+cu128'\ncuda: Optional[str] = '12.8'\nhip: Optional[str] = None\n",
        "2.8.0+cu128",
        "12.8",
    ),
    ("", "", ""),
]


@pytest.mark.parametrize(("text", "version", "cuda"), VERSION_FILES)
def test_torch_is_known_by_its_version_file(text: str, version: str, cuda: str) -> None:
    """Wheels of all ages and builds from source say which CUDA they were made for."""
    answer = {"executable": "/v/bin/python", "version": [3, 11, 7], "torch": text}

    assert Interpreter("/v/bin/python", "3.11.7", version, cuda) == interpreter.parse_answer(answer)


def test_banners_are_no_answer() -> None:
    """What a site prints before and after does not confuse."""
    answer = json.dumps({"executable": "/p", "version": [3, 9, 1], "torch": ""})
    child = Ended(output=f"Welcome!\n{MARK}{answer}{MARK}bye {{\n")

    assert Interpreter("/p", "3.9.1") == interpreter.result(child, "python3")


@pytest.mark.parametrize(
    ("child", "error"),
    [
        (
            Ended(told(doing="x") + told(error="no python3 on PATH (/bin)")),
            "no python3 on PATH (/bin)",
        ),
        (
            Ended(told(doing="starting /nfs/python"), code=-9, late=True),
            "starting /nfs/python: no answer within 15 s",
        ),
        (
            Ended(told(path="/p"), "Fatal Python error\nNo module named 'encodings'\n", 1),
            "/p ended with exit code 1 without an answer: No module named 'encodings'",
        ),
        (
            Ended(output=f'{MARK}{{"executable": "/p", "version": [3, 6, 15], "torch": ""}}{MARK}'),
            "/p is Python 3.6.15, older than 3.8",
        ),
    ],
)
def test_an_interpreter_that_cannot_be_used_says_why(child: Ended, error: str) -> None:
    """Nothing but the reason is filled."""
    assert Interpreter(error=error) == interpreter.result(child, "python3")


def test_the_last_word_about_the_gpus_counts() -> None:
    """Owners of processes come later than the processes, and may never come."""
    first = [{"index": 0, "processes": [{"pid": 7}]}]
    last = [{"index": 0, "processes": [{"pid": 7, "user": "ann"}]}]
    report = told(gpus=first, source="nvml") + told(gpus=last)

    named = query.result(Ended(report))
    assert named["gpus"] == (Gpu(0, processes=(GpuProcess(7, user="ann"),)),)
    assert named["gpu_source"] == "nvml"
    late = query.result(Ended(told(gpus=first, source="nvml") + b'{"gpus": [', late=True))
    assert (late["gpus"], late["gpu_source"]) == ((Gpu(0, processes=(GpuProcess(7),)),), "nvml")


@pytest.mark.parametrize(
    ("child", "reason"),
    [
        (Ended(code=-9, late=True), "the driver did not answer within 15 s"),
        (Ended(code=-11), "the query of the driver was ended by signal 11: "),
    ],
)
def test_a_driver_that_hangs_or_crashes_is_told(child: Ended, reason: str) -> None:
    """The reason stands where the source would."""
    found = query.result(child)
    assert (found["gpus"], found["gpu_source"]) == ((), reason)
