"""Inventory of this machine, by a torch process that ends: pytest itself is on no GPU."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.host.gpu import query
from runner.host.process.bounded_child import wait_all

PROGRAMS = Path(__file__).with_name("programs.py")


class NoGpuError(Exception):
    """There is no NVIDIA GPU here that torch can use."""


@dataclass(frozen=True)
class Machine:
    """What torch sees here: its versions, and the visible GPUs in the order of their addresses."""

    torch: str
    names: tuple[str, ...]
    uuids: tuple[str, ...]

    def describe(self) -> str:
        version = host_facts()["driver"].version or "unknown"
        gpus = " and ".join(f"{count} x {name}" for name, count in Counter(self.names).items())
        return f"{gpus}, driver {version}, torch {self.torch}, {os.cpu_count()} cores"


@functools.cache
def find_machine() -> Machine:
    if not query.has_driver():
        raise NoGpuError("no NVIDIA GPU here: there is no NVIDIA driver")
    done = subprocess.run(
        [sys.executable, str(PROGRAMS), "devices"],
        env={**os.environ, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"},  # as in the facts
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise NoGpuError(f"{sys.executable}: {(done.stderr.splitlines() or ['no torch'])[-1]}")
    seen = json.loads(done.stdout)
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if not seen["cuda"]:
        raise NoGpuError(f"torch {seen['torch']} has no CUDA: install a build of it that has")
    if not seen["names"]:
        why = "try nvidia-smi" if visible is None else f"CUDA_VISIBLE_DEVICES is {visible!r}"
        raise NoGpuError(f"torch {seen['torch']} sees no NVIDIA GPU here: {why}")
    versions = f"{seen['torch']} (CUDA {seen['cuda']}, NCCL {seen['nccl'] or 'none'})"
    return Machine(versions, tuple(seen["names"]), tuple(seen["uuids"]))


@functools.cache
def host_facts() -> dict[str, Any]:
    """Return the fields of a host's facts that are about GPUs."""
    child = query.start(30, health=True)
    try:
        wait_all([child])
    finally:
        child.kill()
    return query.result(child)
