"""What nvidia-smi and NVML say of GPUs, as recorded from several generations of drivers."""

from __future__ import annotations

import struct
from textwrap import dedent

import pytest

from runner.core.model.facts import Gpu, GpuProcess
from runner.host.gpu import nvidia_smi, nvml

MIB = 1 << 20


def test_an_old_server_has_its_gpus_and_their_users() -> None:
    """Driver 440: names without a vendor, two processes share a GPU, the other one is idle."""
    devices = dedent("""\
        0, Tesla V100-SXM2-16GB, GPU-6f7d1b0e-5f1e-0d4c-3a52-19d0e2b0d6d1, 16160, 12427
        1, Tesla V100-SXM2-16GB, GPU-02ff1c5b-7d0c-41f8-bd1b-a7d0fd8a4b57, 16160, 0
        """)
    apps = dedent("""\
        GPU-6f7d1b0e-5f1e-0d4c-3a52-19d0e2b0d6d1, 9980, 6197
        GPU-6f7d1b0e-5f1e-0d4c-3a52-19d0e2b0d6d1, 10121, 6219
        """)

    first, second = nvidia_smi.parse_gpus(devices, apps)

    assert (
        first.name,
        first.memory_total,
        first.memory_used,
    ) == ("Tesla V100-SXM2-16GB", 16160 * MIB, 12427 * MIB)
    assert (GpuProcess(9980, 6197 * MIB), GpuProcess(10121, 6219 * MIB)) == first.processes
    assert (second.index, second.memory_used, second.processes) == (1, 0, ())


def test_a_mig_device_is_listed_with_what_it_tells() -> None:
    """Driver 535 with MIG, asked by a plain user: memory and processes are kept from us."""
    devices = (
        "0, NVIDIA A100-SXM4-80GB, GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77, 81920, "
        "[Insufficient Permissions]\n"
    )
    apps = "GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77, 41244, [Insufficient Permissions]\n"

    (gpu,) = nvidia_smi.parse_gpus(devices, apps)

    assert (81920 * MIB, 0, (GpuProcess(41244),)) == (
        gpu.memory_total,
        gpu.memory_used,
        gpu.processes,
    )


@pytest.mark.parametrize(
    ("gap", "error"),
    [
        ("[N/A]", ""),
        ("[Not Supported]", ""),
        ("[Unknown Error]", "Unknown Error"),
        ("[GPU is lost]", "GPU is lost"),
    ],
)
def test_what_a_driver_does_not_tell_is_empty(gap: str, error: str) -> None:
    """A broken device answers with a word in brackets; where that says why, it is kept."""
    assert [Gpu(3, error=error)] == nvidia_smi.parse_gpus(f"3, {gap}, {gap}, {gap}, {gap}\n", "")


def test_a_gpu_without_memory_of_its_own_is_well() -> None:
    """Unified memory (GB10) has no total."""
    (gpu,) = nvidia_smi.parse_gpus("0, NVIDIA GB10, GPU-1, [N/A], [N/A]\n", "")
    assert (gpu.name, gpu.memory_total, gpu.error) == ("NVIDIA GB10", 0, "")


def test_complaints_between_the_rows_are_skipped() -> None:
    """A GPU that fell off the bus puts a sentence where its row would be; the others count."""
    devices = dedent("""\
        0, NVIDIA H100 80GB HBM3, GPU-b1bd8c2f-35cb-2f1e-1d8a-2a1f1ad2d2f0, 81559, 4
        Unable to determine the device handle for GPU1: 0000:5E:00.0: Unknown Error
        2, NVIDIA H100 80GB HBM3, GPU-77b1cc4b-6f21-e0b2-8a2e-0e5c4b1e9d11, 81559, 4
        """)

    assert [
        gpu.index for gpu in nvidia_smi.parse_gpus(devices, "No running processes found\n")
    ] == [
        0,
        2,
    ]


NO_DRIVER = (
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. "
    "Make sure that the latest NVIDIA driver is installed and running.\n"
)
MISMATCH = """\
Failed to initialize NVML: Driver/library version mismatch
NVML library version: 550.127
"""


@pytest.mark.parametrize("text", ["", "No devices were found\n", NO_DRIVER, MISMATCH])
def test_an_answer_without_rows_is_no_gpu(text: str) -> None:
    """No sentence of nvidia-smi is taken for a GPU."""
    assert nvidia_smi.parse_gpus(text, text) == []


def _buffer(layout: str, *records: tuple[int, ...]) -> bytes:
    """Return what a driver leaves in our buffer of sentinels."""
    written = b"".join(struct.pack(layout, *record) for record in records)
    return written + bytes((0xAA,)) * (4096 - len(written))


@pytest.mark.parametrize(
    ("layout", "rest", "usual"),
    [
        ("=IIQ", (), 16),  # before driver 450
        ("=IIQII", (0xFFFFFFFF, 0xFFFFFFFF), 24),  # _v2 and _v3
        ("=IIQIIQ", (0xFFFFFFFF, 0xFFFFFFFF, 0), 24),  # _v3 of driver 535.54
    ],
)
@pytest.mark.parametrize("count", [0, 1, 2, 5])
def test_the_length_of_a_process_record_is_measured(
    layout: str, rest: tuple[int, ...], usual: int, count: int
) -> None:
    """However long the driver's records are, each pid keeps its memory."""
    expected = [(1000 + number, (number + 1) * MIB) for number in range(count)]
    records = [(pid, 0, memory, *rest) for pid, memory in expected]

    found = nvml.parse_processes(_buffer(layout, *records), count, usual)

    assert expected == [(process.pid, process.memory) for process in found]


def test_memory_that_is_not_available_is_unknown() -> None:
    """The driver's all-ones is no 16 exabytes."""
    buffer = _buffer("=IIQII", (77, 0, (1 << 64) - 1, 0, 0))

    assert (GpuProcess(77),) == nvml.parse_processes(buffer, 1, 24)
