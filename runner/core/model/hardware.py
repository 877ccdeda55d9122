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
    """The health of one GPU.

    Attributes:
        bus: Its PCI address, like "0000:3b:00".
        volatile: Uncorrected memory errors since the driver was loaded.
        aggregate: Uncorrected memory errors of its whole life.
        repair_pending: Whether bad memory is replaced at the next reset (row or page).
        repair_failed: Whether bad memory could not be replaced.
        throttle_reasons: The reasons for lower clocks: the bits of nvml.h.
        persistent: Whether the driver stays loaded while no process uses the GPU.
        mig: Whether it is divided into instances (MIG).
        instances: The number of instances that a program can use; 0 without MIG.
        pcie_width: Lanes of its PCIe link.
        pcie_width_max: Lanes of card and slot.
        numa_node: The NUMA node it is attached to.
        error: The driver's reason why it cannot be used, though it has a name.
    """

    bus: str = ""
    volatile: Optional[int] = None
    aggregate: Optional[int] = None
    repair_pending: Optional[bool] = None
    repair_failed: Optional[bool] = None
    throttle_reasons: Optional[int] = None
    persistent: Optional[bool] = None
    mig: Optional[bool] = None
    instances: Optional[int] = None
    pcie_width: Optional[int] = None
    pcie_width_max: Optional[int] = None
    numa_node: Optional[int] = None
    error: str = ""


@dataclass(frozen=True)
class Xid:
    """One kind of error in the kernel's log since the boot, reported by the driver.

    Attributes:
        bus: The PCI address of the GPU, like "0000:3b:00".
        code: Its number in NVIDIA's catalogue.
        text: The text of the last one.
        count: The number of times.
        ago_s: The seconds since the last one.
    """

    bus: str
    code: int
    text: str = ""
    count: int = 1
    ago_s: float = 0.0


@dataclass(frozen=True)
class System:
    """The machine and its load; memory in bytes.

    Attributes:
        cpus: All cores of the machine.
        load: The load average of the last minute.
        memory: All memory.
        memory_free: Memory that programs can still get without swapping.
        memory_limit: The memory limit of our cgroups; None for all memory.
        swapped: Memory in swap.
        numa_nodes: The NUMA nodes whose cores we may use.
        infiniband: The InfiniBand (or RoCE) devices.
    """

    cpus: int = 0
    load: Optional[float] = None
    memory: Optional[int] = None
    memory_free: Optional[int] = None
    memory_limit: Optional[int] = None
    swapped: Optional[int] = None
    numa_nodes: Tuple[int, ...] = ()
    infiniband: Tuple[str, ...] = ()


@dataclass(frozen=True)
class TopProcess:
    """The running process that has used most cores over its life."""

    pid: int
    cores: float
    user: str = ""
    command: str = ""
