"""What `make gpu` prints: its table, and the line where there is no GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.gpu.machine import ROOT, NoGpuError, read_devices
from tests.gpu.table import MAX_DETAIL_LINES, MAX_FIGURE_CHARS, Row, cell, render

pytestmark = pytest.mark.documents("docs/gpu.md")

TABLE = """\
`make gpu`: 1 ok, 1 skipped, 1 failed in 16 s

1 x NVIDIA H200, driver 580.159.03

| check | result | figure | seconds |
|---|---|---|--:|
| ddp, 1 GPU | ok | losses within 2e-05 of one CPU's | 6.0 |
| ddp, 2 GPUs | skipped | needs 2 GPUs | |
| nccl, 1 GPU | failed | exit code 1: runner a \\| b | 10.4 |

nccl, 1 GPU:

~~~text
exit code 1: runner a | b

rank 0 failed
~~~
"""
DEVICES = {"torch": "2.13.0", "cuda": "13.0", "nccl": "2.29.3", "names": ["A"], "uuids": ["GPU-1"]}


def test_the_table_has_a_row_per_check() -> None:
    """A machine, a row per check, and how each failure ended, as Markdown."""
    details = "exit code 1: runner a | b\n\nrank 0 failed\n"
    rows = [
        Row("ddp, 1 GPU", "ok", "losses within 2e-05 of one CPU's", 6.02),
        Row("ddp, 2 GPUs", "skipped", "needs 2 GPUs", 0.001),
        Row("nccl, 1 GPU", "failed", "exit code 1: runner a | b", 10.44, details),
    ]
    assert render("1 x NVIDIA H200, driver 580.159.03", rows) == TABLE


def test_long_texts_are_cut() -> None:
    """A cell is one line, and of a failure the end is shown."""
    assert cell("a\n b") == "a b"
    assert len(cell("x" * 500)) == MAX_FIGURE_CHARS
    shown = render("", [Row("a", "failed", "", 1, "\n".join(map(str, range(90))))])
    assert shown.endswith("\n88\n89\n~~~\n")
    assert f"~~~text\n{90 - MAX_DETAIL_LINES}\n" in shown


CHECKS = """
import pytest
def test_good_one(record_property): record_property("figure", "7 GB/s")
@pytest.mark.parametrize("gpus", [pytest.param(2, id="2 GPUs")])
def test_skip(gpus): pytest.skip("needs 2 GPUs")
def test_words(): pytest.fail("exit code 1: runner a\\n\\nrank 0 failed", pytrace=False)
def test_traceback(): assert 1 == 2, "they differ"
@pytest.fixture
def broken(): raise ValueError("no")
def test_fixture(broken): pass
"""
SHOW = """
import dataclasses, json, sys
from tests.gpu.__main__ import run_checks
code, rows = run_checks(sys.argv[1])
print(json.dumps([code, *map(dataclasses.asdict, rows)]))
"""


def test_each_outcome_of_a_check_is_a_row(tmp_path: Path) -> None:
    """Its figure, why it was skipped, or the first line of what went wrong, with the rest."""
    (tmp_path / "test_these.py").write_text(CHECKS)
    argv = [sys.executable, "-c", SHOW, str(tmp_path / "test_these.py")]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True)
    code, *rows = json.loads(done.stdout.splitlines()[-1])
    assert code == 1
    assert [(row["check"], row["result"], row["figure"]) for row in rows] == [
        ("good one", "ok", "7 GB/s"),
        ("skip: 2 GPUs", "skipped", "needs 2 GPUs"),
        ("words", "failed", "exit code 1: runner a"),
        ("traceback", "failed", "AssertionError: they differ"),
        ("fixture", "failed", "ValueError: no"),
    ]
    assert rows[2]["details"] == "exit code 1: runner a\n\nrank 0 failed"
    traceback = rows[3]["details"]
    assert ("test_these.py:" in traceback, "assert 1 == 2" in traceback) == (True, True)


def test_without_a_gpu_one_line_says_so() -> None:
    """Exit code 2, and nothing else."""
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    argv = [sys.executable, "-m", "tests.gpu"]
    done = subprocess.run(argv, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("make gpu: ")
    assert "no NVIDIA GPU here" in done.stderr or "has no CUDA" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("seen", "visible", "reason"),
    [
        ({"cuda": None, "names": []}, None, "torch 2.13.0 has no CUDA"),
        ({"names": []}, None, "torch 2.13.0 sees no NVIDIA GPU here: try nvidia-smi"),
        ({"names": []}, "7", "torch 2.13.0 sees no NVIDIA GPU here: CUDA_VISIBLE_DEVICES is '7'"),
    ],
)
def test_why_there_is_none(seen: dict[str, Any], visible: str | None, reason: str) -> None:
    """By what torch says, and by what hides it."""
    with pytest.raises(NoGpuError, match=f"^{reason}"):
        read_devices({**DEVICES, **seen}, visible)
    assert read_devices(DEVICES, "0").torch == "2.13.0 (CUDA 13.0, NCCL 2.29.3)"
