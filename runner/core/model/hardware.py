"""How well a host is: its driver, its GPUs, its memory, and who else uses it.

What is None, or empty, the host does not tell.
"""

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
    """How well one GPU is.

    Attributes:
        bus: Its PCI address, like "0000:3b:00".
        volatile: Memory errors that could not be corrected, since the driver was loaded.
        aggregate: Those of its whole life.
        repair_pending: Whether bad memory waits for a reset to be replaced (row or page).
        repair_failed: Whether bad memory could not be replaced.
        throttle_reasons: Why its clocks are lower than they could be: the bits of nvml.h.
        persistent: Whether the driver stays loaded while nobody uses the GPU.
        mig: Whether it is divided into instances (MIG).
        instances: How many of those a program can use; 0 without MIG.
        pcie_width: Lanes of its PCIe link.
        pcie_width_max: How many lanes card and slot have.
        numa_node: The NUMA node it is attached to.
        error: The driver's words for why it cannot be used, though it has a name.
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
    """One kind of error that the driver told the kernel's log since the boot.

    Attributes:
        bus: The PCI address of the GPU, like "0000:3b:00".
        code: Its number in NVIDIA's catalogue.
        text: The driver's words, of the last time.
        count: How often.
        ago_s: How long the last time is ago.
    """

    bus: str
    code: int
    text: str = ""
    count: int = 1
    ago_s: float = 0.0


@dataclass(frozen=True)
class System:
    """What the machine has, and how much of it is taken. Memory in bytes.

    Attributes:
        cpus: Cores of the machine, ours or not.
        load: Processes that ran or waited for a disk, on average over the last minute.
        memory: All of it.
        memory_free: What programs could still get without swapping.
        memory_limit: What all processes of our cgroups together may take; None for all of it.
        swapped: What lies in swap.
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
    """The process that took most cores over its life, of those that run right now."""

    pid: int
    cores: float
    user: str = ""
    command: str = ""
