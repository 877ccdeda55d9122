"""Answers of child processes and of the driver: the interpreter, GPUs and their processes."""

from __future__ import annotations

import json
import struct

import pytest

from runner.core.wire.facts import Gpu, GpuProcess, Interpreter
from runner.host.facts import interpreter
from runner.host.gpu import nvml, query
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


MIB = 1 << 20


def _buffer(layout: str, *records: tuple[int, ...]) -> bytes:
    """Return what a driver leaves in our buffer of sentinels."""
    written = b"".join(struct.pack(layout, *record) for record in records)
    return written + bytes((0xAA,)) * (4096 - len(written))


@pytest.mark.parametrize(
    ("layout", "rest"),
    [
        ("=IIQII", (0xFFFFFFFF, 0xFFFFFFFF)),  # _v2 and _v3
        ("=IIQIIQ", (0xFFFFFFFF, 0xFFFFFFFF, 0)),  # _v3 of driver 535.54
    ],
)
@pytest.mark.parametrize("count", [1, 5])
def test_the_length_of_a_process_record_is_measured(
    layout: str, rest: tuple[int, ...], count: int
) -> None:
    """However long the driver's records are, each pid keeps its memory."""
    expected = [(1000 + number, (number + 1) * MIB) for number in range(count)]
    records = [(pid, 0, memory, *rest) for pid, memory in expected]

    found = nvml.parse_processes(_buffer(layout, *records), count)

    assert expected == [(process.pid, process.memory) for process in found]


def test_memory_that_is_not_available_is_unknown() -> None:
    """The driver's all-ones is no 16 exabytes."""
    buffer = _buffer("=IIQII", (77, 0, (1 << 64) - 1, 0, 0))

    assert (GpuProcess(77),) == nvml.parse_processes(buffer, 1)
