"""Answers of the driver about GPUs and their processes."""

from __future__ import annotations

import json
import struct

import pytest

from runner.core.wire.facts import Gpu, GpuProcess
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


@pytest.mark.parametrize(
    ("layout", "rest"),
    [
        ("=IIQII", (0xFFFFFFFF, 0xFFFFFFFF)),  # _v2 and _v3
        ("=IIQIIQ", (0xFFFFFFFF, 0xFFFFFFFF, 0)),  # _v3 of driver 535.54
    ],
)
def test_the_length_of_a_process_record_is_measured(layout: str, rest: tuple[int, ...]) -> None:
    """However long it is, each pid keeps its memory; all ones is no 16 exabytes."""
    memory = (1 << 20, 5 << 20, (1 << 64) - 1)
    records = [struct.pack(layout, pid, 0, size, *rest) for pid, size in enumerate(memory)]
    buffer = b"".join(records).ljust(4096, bytes((0xAA,)))
    expected = (GpuProcess(0, 1 << 20), GpuProcess(1, 5 << 20), GpuProcess(2))
    assert nvml.parse_processes(buffer, 3) == expected
