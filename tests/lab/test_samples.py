"""Samples of hosts and GPUs: what a run has of them, and what no driver can do to it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from runner.core.wire.codec import decode
from runner.core.wire.run_info import GpuSample, Sample
from runner.host.process import procfs
from runner.host.sampling import GpuReader, Sampler
from tests.lab.fake_gpus import NAME, FakeGpu, HostGpus, LocalGpus
from tests.lab.lab import Lab
from tests.lab.launching import RANK_SCRIPT, Launcher
from tests.lab.waiting import wait_until

pytestmark = [pytest.mark.promise(1)]

GIB = 1 << 30
BUSY = FakeGpu(98, 70 * GIB, 80 * GIB, 612.5, 71, clock_reasons=0x4 | 0x1)


@pytest.fixture
def gpus(lab: Lab, tmp_path: Path) -> Iterator[HostGpus]:
    gpus = HostGpus(lab["node1"], tmp_path)
    yield gpus
    gpus.remove()


@pytest.fixture
def local_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalGpus:
    return LocalGpus(tmp_path, monkeypatch)


def take(sampler: Sampler) -> Sample:
    """Return the next sample, once the drivers have answered or their time is up."""
    taken: list[Sample | None] = []

    def is_complete() -> bool:
        taken.append(sampler.poll())
        return taken[-1] is not None

    wait_until(is_complete, "a sample")
    assert taken[-1]
    return taken[-1]


def decoded(lines: str) -> list[Sample]:
    return [decode(Sample, json.loads(line)) for line in lines.splitlines()]


def test_a_run_has_samples_whatever_the_driver_does(
    lab: Lab, on_lab: Launcher, gpus: HostGpus
) -> None:
    """While it is on, and on record afterwards; nothing is left, also of a driver that hangs."""
    gpus.set(BUSY, FakeGpu(utilization=None, power_w=None, clock_reasons=None))
    words = on_lab.rank_overrides("print=up", "wait=/dev/shm/go")
    controller = on_lab.start("cluster=lab", "sample_s=1", *words)
    controller.until_printed("] up", 2)
    run_id = controller.run_id

    def samples_so_far() -> list[Sample]:
        path = f"~/.runner/runs/{run_id}/node1/attempt_0/samples.jsonl"
        return decoded(lab["node1"].sh(f"cat {path} 2>/dev/null", check=False))

    def newest() -> Sample:
        return samples_so_far()[-1]

    wait_until(lambda: len(samples_so_far()) > 1, "samples")
    expected = (
        GpuSample(0, NAME, 98, 70 * GIB, 80 * GIB, 612.5, 71.0, ("power",), memory_busy=49),
        GpuSample(1, NAME, None, 0, 80 * GIB, None, 40.0),
    )
    wait_until(lambda: newest().gpus == expected, "both GPUs", detail=newest)
    mine = newest()
    assert None not in (mine.cpu, mine.memory_used)
    (rank,) = (p for p in lab["node1"].processes(RANK_SCRIPT) if "attempt_0" not in p.cmdline)
    gpus.set(FakeGpu(processes=((rank.pid, 5 * GIB), (99999, 1))))
    wait_until(lambda: newest().gpus[0].users[:1], "the other GPU")
    wait_until(lambda: newest().gpus[0].users[0].user == "alice", "the name of a user")
    user, unknown = newest().gpus[0].users
    assert (user.memory, user.run_id) == (5 * GIB, run_id)
    assert user.command == f"python -u {RANK_SCRIPT}"
    assert (unknown.pid, unknown.user, unknown.command) == (99999, "", "")

    gpus.set(mode="hang")
    wait_until(lambda: newest().gpu_error, "the end of patience")
    count = len(samples_so_far())
    wait_until(lambda: len(samples_so_far()) > count + 1, "more samples")
    assert newest().gpu_error == "the driver did not answer within 3 s"
    for node in ("node1", "node2"):
        lab[node].sh("touch /dev/shm/go")
    done = controller.wait()
    assert done.code == 0, done

    files = done.folder.glob("hosts/*/attempt_0/samples.jsonl")
    samples = [sample for file in files for sample in decoded(file.read_text())]
    assert {sample.node for sample in samples} == {"node1", "node2"}
    assert not any(sample.gpus or sample.gpu_error for sample in samples if sample.node == "node2")
    assert lab.wait_idle() == {}


def test_a_driver_that_crashes_is_said(local_gpus: LocalGpus) -> None:
    """Its child is replaced after a pause, and not before."""
    mine = Sampler("n1")
    with contextlib.closing(mine.gpus):
        local_gpus.set(BUSY, mode="15")
        assert take(mine).gpu_error == "NVML: GPU is lost"
        local_gpus.set(BUSY)
        assert take(mine).gpus[0].utilization == 98
        (pid,) = mine.gpus.pids
        local_gpus.set(BUSY, mode="crash")
        assert take(mine).gpu_error == "the process that asks the driver was ended by signal 11"
        assert (mine.gpus.pids, procfs.is_running(pid)) == (frozenset(), False)
        local_gpus.set(BUSY)
        assert take(mine).gpu_error == "the process that asks the driver was ended by signal 11"


def test_a_directory_service_that_does_not_answer_costs_a_name(
    local_gpus: LocalGpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until it does; each user is looked up once."""
    answered = threading.Event()
    asked: list[int] = []

    def find_name(uid: int) -> str:
        asked.append(uid)
        answered.wait()
        return "alice"

    monkeypatch.setattr(procfs, "user_name", find_name)
    local_gpus.set(FakeGpu(processes=((os.getpid(), GIB),)))
    reader = GpuReader()

    def user() -> str:
        (gpu,) = reader.answer().gpus
        return gpu.users[0].user

    assert user() == str(os.getuid())
    answered.set()
    wait_until(lambda: user() == "alice", "the name")
    assert asked == [os.getuid()]


def test_the_child_ends_with_its_parent(local_gpus: LocalGpus) -> None:
    """When that is killed without a word, and the driver hangs."""
    local_gpus.set(mode="hang")
    read_fd, write_fd = os.pipe()
    parent = os.fork()
    if parent == 0:
        try:
            mine = Sampler("n1")
            mine.poll()
            os.write(write_fd, str(*mine.gpus.pids).encode())
            signal.pause()
        finally:
            os._exit(1)
    child = int(os.read(read_fd, 100))
    assert procfs.is_running(child)
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    for descriptor in (read_fd, write_fd):
        os.close(descriptor)
    wait_until(lambda: not procfs.is_running(child), "the end of the child")
