"""Hardware health: driver, GPUs, memory and load of a host; None or "" is unknown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional, Tuple


@dataclass(frozen=True)
class Driver:
    """NVIDIA's driver: its version ("550.54.15"), and the newest CUDA it supports ("12.4")."""

    version: str = ""
    cuda: str = ""


@dataclass(frozen=True)
class GpuHealth:
    """The health of one GPU."""

    bus: str = ""  # its PCI address, like "0000:3b:00"
    volatile: Optional[int] = None  # uncorrected memory errors since the driver was loaded
    repair_pending: Optional[bool] = None  # bad memory is replaced at the next reset (row or page)
    repair_failed: Optional[bool] = None  # bad memory could not be replaced
    throttle_reasons: Optional[int] = None  # for lower clocks: the bits of nvml.h
    error: str = ""  # why the driver cannot use it, though it has a name


@dataclass(frozen=True)
class Xid:
    """One kind of error in the kernel's log since the boot, reported by the driver."""

    bus: str  # the PCI address of the GPU, like "0000:3b:00"
    code: int  # its number in NVIDIA's catalogue
    text: str = ""  # of the last one
    count: int = 1  # of all of them
    ago_s: float = 0.0  # since the last one


@dataclass(frozen=True)
class System:
    """The machine and its load; memory in bytes."""

    cpus: int = 0  # all cores of the machine
    load: Optional[float] = None  # the average of the last minute
    memory: Optional[int] = None
    memory_free: Optional[int] = None  # that programs can still get without swapping
    memory_limit: Optional[int] = None  # of our cgroups; None for all memory
    swapped: Optional[int] = None  # memory in swap
    infiniband: Tuple[str, ...] = ()  # InfiniBand (or RoCE) devices
