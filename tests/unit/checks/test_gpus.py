"""Checks of driver, health and system: every outcome, one fault at a time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from runner.checks.base import CheckContext, all_checks
from runner.core.model.facts import Driver, Facts, GpuHealth, System, Xid
from runner.core.model.results import Level
from tests.golden.builders import TORCH, gpus
from tests.unit.checks.test_checks import bad, case, host

ERROR, WARNING, FINE = Level.ERROR, Level.WARNING, Level.OK
GIB = 1 << 30
ALL = (None, None, None)
WELL = GpuHealth("0000:3b:00", volatile=0, repair_pending=False, throttle_reasons=1)


# --- driver ---

DRIVER = Driver("550.54.15", "12.4")


def driven(driver: Driver, **changes: Any) -> CheckContext:
    others = {name: host(name, driver=DRIVER) for name in "ac"}
    return case(ALL, **others, b=host("b", driver=driver, **changes))


@pytest.mark.parametrize(
    ("driver", "cuda", "told"),
    [
        (Driver("470.256.02", "11.4"), "12.8", "CUDA 11.4"),
        (Driver("570.86.10", "12.8"), "13.0", "CUDA 12.8"),
    ],
)
def test_a_driver_too_old_for_torch_is_an_error(driver: Driver, cuda: str, told: str) -> None:
    """Both are named, and the cure."""
    old = driven(driver, python=replace(TORCH, torch_cuda=cuda))
    (finding,) = [one for one in all_checks()["driver"](old) if one.level is ERROR]
    assert finding.node == "b"
    assert finding.message == (
        f"driver {driver.version} supports {told}, torch {TORCH.torch} needs CUDA {cuda}"
    )
    branch = {"12.8": 525, "13.0": 580}[cuda]
    assert finding.hint.startswith(
        f"install driver {branch} or newer on that host, or a torch built"
    )


# --- health ---


def ill(*healths: GpuHealth | None, xids: tuple[Xid, ...] = (), **errors: str) -> CheckContext:
    """Host b with GPUs of this health; those in `errors` ("gpu1") do not answer."""
    there = tuple(
        replace(gpu, health=told, error=errors.get(f"gpu{gpu.index}", ""))
        for gpu, told in zip(gpus(len(healths)), healths, strict=True)
    )
    return case(ALL, b=host("b", gpus=there, xids=xids))


@pytest.mark.parametrize(
    ("changes", "level", "what"),
    [
        (
            {"volatile": 2},
            WARNING,
            "2 uncorrected memory errors since the driver was loaded",
        ),
        ({"repair_pending": True}, WARNING, "bad memory is remapped at the next reset"),
        ({"throttle_reasons": 0x48}, WARNING, "slowed down: it is too hot (hardware)"),
    ],
)
def test_each_ill_is_told_with_its_gpu(changes: dict[str, Any], level: Level, what: str) -> None:
    """The well one beside it is not named."""
    ((found_level, node, text),) = bad("health", ill(WELL, replace(WELL, **changes)))
    assert (found_level, node) == (level, "b")
    assert text.startswith(f"GPU 1: {what}")


@pytest.mark.parametrize(
    ("error", "what"),
    [
        ("GPU is lost", "GPU 1: no answer to the driver (GPU is lost); fallen off the bus"),
        ("GPU requires reset", "GPU 1: the driver asks for a reset (GPU requires reset)"),
    ],
)
def test_a_gpu_that_does_not_answer_is_an_error(error: str, what: str) -> None:
    """At a launch too, which does not ask for more; with the key to leave it out."""
    for told in (WELL, None):
        lost = ill(told, None, gpu1=error)
        (finding,) = [one for one in all_checks()["health"](lost) if one.level is ERROR]
        assert finding.message.startswith(what)
        assert "cluster.nodes.b.gpus=[...]" in finding.hint


def test_ills_that_differ_only_in_the_gpu_are_one() -> None:
    """The command of the cure names all."""
    both = ill(*[replace(WELL, volatile=2)] * 2)
    (finding,) = [one for one in all_checks()["health"](both) if one.level is not Level.OK]
    assert finding.message.startswith("GPUs 0-1: 2 uncorrected memory errors")
    assert "--gpu-reset -i 0,1 there" in finding.hint


def test_xids_are_told_with_their_meaning() -> None:
    """Those of programs are not; those of other GPUs only where one does not say which it is."""
    logged = (
        Xid("0000:3b:00", 79, "GPU has fallen off the bus.", 1, 7200.0),
        Xid("0000:3b:00", 31, "MMU Fault", 3, 30.0),
        Xid("0000:3b:00", 999, "something new", 2, 200.0),
        Xid("0000:da:00", 48),
    )
    own = [
        "GPU 0: Xid 79, once since the boot, 2 h 00 m ago: it has fallen off the bus",
        "GPU 0: Xid 999, 2 times since the boot, last 3 m 20 s ago: something new",
    ]
    assert [what for _, _, what in bad("health", ill(WELL, xids=logged))] == own
    other = "the GPU at 0000:da:00: Xid 48, once since the boot, 0 s ago: an uncorrectable memory"
    found = bad("health", ill(WELL, None, xids=logged))
    assert [what.removesuffix(" error") for _, _, what in found] == [*own, other]


# --- limits and system ---


ROOMY = System(8, 1.0, 64 * GIB, 50 * GIB)


def roomy(**changes: Any) -> Facts:
    """Host b with a machine that is well but for these."""
    return host("b", system=replace(ROOMY, **changes))


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        (
            {"memory_limit": 16 * GIB},
            (
                "the cgroup of a run may use 16.0 GiB of the machine's 64.0 GiB of memory: beyond "
                "that "
                "the kernel kills ranks"
            ),
        ),
        (
            {"memory_free": 2 * GIB, "swapped": 3 * GIB},
            "2.0 GiB of 64.0 GiB of memory is free, 3.0 GiB is swapped out",
        ),
        ({"load": 6.5}, "a load of 6 on 8 cores: they are in use"),
    ],
)
def test_little_memory_or_busy_cores_are_a_warning(changes: dict[str, Any], what: str) -> None:
    """Both figures are named."""
    assert bad("system", case(b=roomy(**changes))) == [(WARNING, "b", what)]
