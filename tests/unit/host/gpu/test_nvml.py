"""Process records that drivers of several generations wrote into our buffer."""

from __future__ import annotations

import struct

import pytest

from runner.core.wire.facts import GpuProcess
from runner.host.gpu import nvml

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
