"""The checks of `make gpu`."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from tests.gpu.launching import (
    LocalLauncher,
    Progress,
    collectives,
    is_forked,
    plan_backend,
    progress,
)
from tests.gpu.machine import PROGRAMS, Machine, host_facts
from tests.lab.launching import Result
from tests.lab.waiting import wait_until

Figure = Callable[[str, object], None]
LOG_EACH = "task.args.log_every=1"
DIGITS = ("task.args.epochs=2", LOG_EACH)
STEPS = ("task.args.steps=20", LOG_EACH)
SMOKE = ("task=collectives", "task.args.mode=smoke", "task.args.seconds=3")
RESNET18 = ("task=resnet18", "task.args.epochs=8", "task.args.target_accuracy=95")
FEW = [pytest.param(count, id=f"{count} GPU{'s' * (count > 1)}") for count in (1, 2)]


def program(name: str) -> tuple[str, ...]:
    return f"task.script={PROGRAMS}", f"task.args_after=[{name}]"


def smi(query: str, *more: str) -> list[list[str]]:
    if not shutil.which("nvidia-smi"):
        pytest.skip("there is no nvidia-smi here")
    argv = ["nvidia-smi", f"--query-{query}", "--format=csv,noheader,nounits", *more]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True)
    return [[cell.strip() for cell in line.split(",")] for line in done.stdout.splitlines()]


def memory_used(uuid: str) -> int:
    return int(smi("gpu=memory.used", f"--id={uuid}")[0][0])


def test_facts_equal_those_of_nvidia_smi(machine: Machine, record_property: Figure) -> None:
    """Index, model, identity and driver of every GPU, by NVML."""
    facts = host_facts()
    assert facts["gpu_source"] == "nvml"
    version = facts["driver"].version
    found = [[str(gpu.index), gpu.name, gpu.uuid, version] for gpu in facts["gpus"]]
    assert found == smi("gpu=index,name,uuid,driver_version")
    assert set(machine.uuids) <= {gpu.uuid for gpu in facts["gpus"]}
    record_property("figure", f"{len(facts['gpus'])} GPUs, CUDA {facts['driver'].cuda}")


def test_chosen_devices(launch: LocalLauncher, machine: Machine, record_property: Figure) -> None:
    """By index in the YAML, by UUID in the environment of the launch, and none."""
    index = {gpu.uuid: gpu.index for gpu in host_facts()["gpus"]}
    last = machine.uuids[-1]

    def seen(run: Result) -> list[str]:
        uuids: list[str] = json.loads(run.log("local", 0))["uuids"]
        return uuids

    devices = program("devices")
    assert seen(launch(*devices, gpus=f"[{index[last]}]")) == [last]
    assert seen(launch(*devices, gpus="", CUDA_VISIBLE_DEVICES=last)) == [last]
    none = launch(*devices, gpus="", CUDA_VISIBLE_DEVICES="")
    assert (seen(none), plan_backend(none)) == ([], "gloo")
    record_property("figure", f"GPU {index[last]}, by index and by UUID; none")


@pytest.mark.parametrize("gpus", FEW)
def test_nccl(launch: LocalLauncher, gpus: int, record_property: Figure) -> None:
    """All sums of an all_reduce that is repeated for seconds are exact."""
    result = collectives(launch(*SMOKE, gpus=gpus))
    assert (result["backend"], result["world_size"]) == ("nccl", gpus)
    smoke = result["smoke"]
    assert (smoke["wrong"], smoke["steps"] > 0) == (0, True)
    record_property(
        "figure", f"{smoke['steps'] / smoke['seconds']:.0f} exact sums of 4 MB per second"
    )


TRAININGS = {
    "single": ("single", DIGITS),
    "data_parallel": ("single", DIGITS),
    "ddp": ("single", DIGITS),
    "fsdp": ("fsdp", STEPS),
    "tensor_parallel": ("tensor_parallel", STEPS),
    "pipeline": ("pipeline", STEPS),
}
"""By task: the one whose losses on one CPU it must equal, and the arguments of both."""


@pytest.mark.parametrize(
    ("task", "gpus"),
    [
        pytest.param(task, count, id=f"{task}, {count} GPU{'s' * (count > 1)}")
        for task in TRAININGS
        for count in ((1,) if task == "single" else (1, 2))
    ],
)
def test_training(
    launch: LocalLauncher,
    on_cpu: Callable[..., Progress],
    task: str,
    gpus: int,
    record_property: Figure,
) -> None:
    """Every loss is that of one CPU, up to rounding."""
    reference, words = TRAININGS[task]
    run = launch(f"task={task}", *words, gpus=gpus)
    assert plan_backend(run) == "nccl"
    worst = worst_difference(progress(run), on_cpu(f"task={reference}", *words))
    assert worst < 1e-3
    record_property("figure", f"losses within {worst:.0e} of one CPU's")


def worst_difference(found: Progress, expected: Progress) -> float:
    assert [line["step"] for line in found] == [line["step"] for line in expected]
    assert len(found) > 10
    assert [line for line in (*found, *expected) if not math.isfinite(line["loss"])] == []
    pairs = zip(found, expected, strict=True)
    return max(abs(float(one["loss"]) - float(other["loss"])) for one, other in pairs)


@pytest.mark.parametrize("ranks", [1, 4], ids=["1 rank", "4 ranks of a GPU"])
def test_preload(launch: LocalLauncher, ranks: int, record_property: Figure) -> None:
    """Forked ranks draw numbers of their own, and compute what executed ones do."""
    executed, forked = (
        launch(*program("usual"), f"task.preload={value}", gpus="[0]", nproc=ranks)
        for value in ("false", "true")
    )
    assert (is_forked(executed), is_forked(forked)) == (False, True), forked.log("local", 0, "err")
    runs = [
        [json.loads(run.log("local", rank)) for rank in range(ranks)] for run in (executed, forked)
    ]
    for numbers in zip(*(found.pop("drawn") for run in runs for found in run), strict=True):
        assert len({str(number) for number in numbers}) == len(numbers)
    assert runs[0] == runs[1]
    record_property("figure", "losses of a compiled model equal to the digit")


@pytest.mark.parametrize("gpus", FEW)
def test_fsdp_in_bfloat16(
    launch: LocalLauncher, on_cpu: Callable[..., Progress], gpus: int, record_property: Figure
) -> None:
    """The losses are near those in float32, and not the same."""
    mixed = launch("task=fsdp", *STEPS, "task.args.mixed_precision=true", gpus=gpus)
    worst = worst_difference(progress(mixed), on_cpu("task=fsdp", *STEPS))
    assert 0 < worst < 0.05
    record_property("figure", f"losses within {worst:.0e} of float32's")


@pytest.mark.parametrize("gpus", FEW)
def test_resnet18_in_bfloat16(launch: LocalLauncher, gpus: int, record_property: Figure) -> None:
    """Autocast on GPUs; it ends above its target."""
    run = launch(*RESNET18, f"task.args.sync_bn={'true' if gpus > 1 else 'false'}", gpus=gpus)
    accuracy = run.log("local", 0).partition("final test accuracy ")[2].partition(" (")[0]
    record_property("figure", f"{accuracy}, {progress(run)[-1]['rate']:.0f} images per second")


def test_a_rank_that_runs_out_of_gpu_memory(launch: LocalLauncher, record_property: Figure) -> None:
    """The verdict names the known failure."""
    result = launch(*program("out_of_memory"), code=1).result
    why = launch.verb("why").out
    assert result["diagnosis"]["cause"] == "gpu_memory", why
    assert result["diagnosis"]["meaning"] in " ".join(why.split())
    record_property("figure", result["diagnosis"]["meaning"])


def test_a_hang_in_collectives(launch: LocalLauncher, record_property: Figure) -> None:
    """Kernels that only wait are told from work, and the run is stopped."""
    began = time.monotonic()
    run = launch(*program("hang"), "watch.stall_s=10", "watch.action=stop", gpus=2, code=1)
    assert "stalled" in {event["kind"] for event in run.events}
    record_property("figure", f"stopped after {time.monotonic() - began:.0f} s")


def test_a_process_left_on_a_gpu(
    launch: LocalLauncher, machine: Machine, record_property: Figure
) -> None:
    """`check` names every process that nvidia-smi names, and with one of ours there is one."""
    argv = [sys.executable, str(PROGRAMS), "hold"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as holder:
        try:
            assert holder.stdout is not None
            if holder.stdout.readline() != b"holding 2048 MiB\n":
                holder.kill()
                why = holder.communicate()[1].decode().strip()
                pytest.fail(why.rpartition("\n")[2] + f"\n\n{why}", pytrace=False)
            pids = {row[0] for row in smi("compute-apps=pid", f"--id={','.join(machine.uuids)}")}
            if not pids:
                pytest.skip("the driver lists no processes here, as in some containers")
            check = launch.verb("check", "--cluster", "local", "--json", launch.workdir)
            messages = " ".join(row["message"] for row in json.loads(check.out))
        finally:
            holder.terminate()
    assert [pid for pid in pids if f"process {pid} " not in messages] == [], messages
    record_property("figure", f"named: {', '.join(sorted(pids))}")


def test_a_stop_frees_the_memory_of_the_gpu(
    launch: LocalLauncher, machine: Machine, record_property: Figure
) -> None:
    """2 GiB that a detached run holds are free once it has been stopped."""
    uuid = machine.uuids[0]
    before = memory_used(uuid)
    run = launch(*program("hold"), "task.entry=plain", "detach=true").folder.name
    try:
        holds = f"run {run} to hold 2 GiB"
        wait_until(lambda: memory_used(uuid) > before + 2000, holds, 60)
        held = memory_used(uuid)
    finally:
        launch.verb("stop", "--run", run, code=None)
    wait_until(lambda: memory_used(uuid) < before + 200, "the memory to be free", 60)
    record_property("figure", f"{before}, {held}, {memory_used(uuid)} MiB in use")
