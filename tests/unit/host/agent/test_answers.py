"""Results of child processes: setup, interpreter, GPUs."""

from __future__ import annotations

import json

import pytest

from runner.core.wire.facts import Gpu, GpuProcess, Interpreter
from runner.host.facts import interpreter
from runner.host.gpu import query
from runner.host.process import bounded_child


class Ended(bounded_child.BoundedChild):
    """A child that never ran."""

    def __init__(self, report: bytes, *, late: bool = False) -> None:
        self.raw_report = report
        self.output = b""
        self.code = 0
        self.timed_out = late
        self.limit_s = 15.0


def told(**facts: object) -> bytes:
    return json.dumps(facts).encode() + b"\n"


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


def test_the_last_word_about_the_gpus_counts() -> None:
    """Owners of processes come later than the processes, and may never come."""
    first = {"gpu 0": {"index": 0, "processes": [{"pid": 7}]}, "source": "nvml"}
    last = {"gpu 0": {"index": 0, "processes": [{"pid": 7, "user": "ann"}]}}
    report = told(**first) + told(**last)

    named = query.result(Ended(report))
    assert named["gpus"] == (Gpu(0, processes=(GpuProcess(7, user="ann"),)),)
    assert named["gpu_source"] == "nvml"
    late = query.result(Ended(told(**first) + b'{"gpu 0": {', late=True))
    assert (late["gpus"], late["gpu_source"]) == ((Gpu(0, processes=(GpuProcess(7),)),), "nvml")
