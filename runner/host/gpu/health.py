"""How well the GPUs are: their memory, clocks, links and instances, as the driver tells.

Every question is one of its own: what a driver does not know, or keeps to itself, stays None. It
is asked in the child that asks for the GPUs.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

from runner.core.model.facts import Gpu
from runner.core.model.hardware import Driver, GpuHealth
from runner.host.gpu import nvidia_smi, nvml
from runner.host.process import procfs

_UNCORRECTED, _VOLATILE, _AGGREGATE = 1, 0, 1
"""nvmlMemoryErrorType_t and nvmlEccCounterType_t."""

_CLOCK_FIELDS = ("clocks_event_reasons.active", "clocks_throttle_reasons.active")
"""The one name for it, and the one it had before driver 535."""

_QUERY_FIELDS = (
    "index",
    "pci.bus_id",
    "persistence_mode",
    "pcie.link.width.current",
    "pcie.link.width.max",
    *_CLOCK_FIELDS,
    "ecc.errors.uncorrected.volatile.total",
    "ecc.errors.uncorrected.aggregate.total",
    "retired_pages.pending",
    "remapped_rows.pending",
    "remapped_rows.failure",
    "mig.mode.current",
)
_BROKEN_STATES = ("[GPU is lost]", "[GPU requires reset]")
_FIELD_NAME = re.compile(r'^"([\w.]+)"', re.MULTILINE)
_PERSISTENCED_SOCKET = "run/nvidia-persistenced/socket"


def driver(library: Optional[nvml.Nvml], root: str = "/") -> Driver:
    """Return the driver, by its library or else by the kernel, which does not know its CUDA."""
    text = procfs.read_text(os.path.join(root, "proc/driver/nvidia/version"))
    match = re.search(r"^NVRM version:.*?\s(\d+\.[\d.]+)\s", text, re.MULTILINE)
    try:
        return library.driver() if library else Driver(match[1] if match else "")
    except nvml.NvmlError:
        return Driver(match[1] if match else "")


def by_nvml(library: nvml.Nvml, gpus: Sequence[Gpu], root: str = "/") -> Dict[int, GpuHealth]:
    """Return the health of the GPUs that answer, by index."""
    health_by_index = {}
    for gpu in gpus:
        with contextlib.suppress(nvml.NvmlError):  # it was lost just now
            health_by_index[gpu.index] = _query_gpu(library, gpu.index, root)
    return health_by_index


def by_smi(path: str, root: str = "/") -> Dict[int, GpuHealth]:
    """Return it from `nvidia-smi`, asked for the fields it has: one unknown would cost them all."""
    known_fields = _FIELD_NAME.findall(nvidia_smi.run_nvidia_smi([path, "--help-query-gpu"])[1])
    fields = [name for name in _QUERY_FIELDS if name in known_fields]
    if fields[:1] != ["index"]:
        return {}
    query = [path, f"--query-gpu={','.join(fields)}", "--format=csv,nounits"]
    health_by_index = parse_health(nvidia_smi.run_nvidia_smi(query)[1], root)
    if any(health.mig for health in health_by_index.values()):
        health_by_index = with_mig_counts(
            health_by_index, nvidia_smi.run_nvidia_smi([path, "-L"])[1]
        )
    return health_by_index


def parse_health(text: str, root: str = "/") -> Dict[int, GpuHealth]:
    """Return what an answer of nvidia-smi with its header tells; what is no row is skipped."""
    lines = [[word.strip() for word in line.split(",")] for line in text.splitlines()]
    header_lines = [line for line in lines if "index" in line]
    if not header_lines:
        return {}
    names = [head.partition(" ")[0] for head in header_lines[0]]
    complete_lines = (line for line in lines if len(line) == len(names))
    rows = [dict(zip(names, line)) for line in complete_lines]  # noqa: B905 (no strict in Python 3.8)
    return {int(row["index"]): _from_row(row, root) for row in rows if row["index"].isdigit()}


def with_mig_counts(health_by_index: Mapping[int, GpuHealth], listing: str) -> Dict[int, GpuHealth]:
    """Return it with how many MIG devices `nvidia-smi -L` lists below each GPU."""
    counts: Dict[int, int] = {}
    index = -1
    for line in listing.splitlines():
        gpu = re.match(r"GPU (\d+):", line)
        index = int(gpu[1]) if gpu else index
        counts[index] = counts.get(index, 0) + bool(re.match(r"\s+MIG .*\(UUID: ", line))
    return {
        index: GpuHealth(**{**vars(health), "instances": counts.get(index) if health.mig else 0})
        for index, health in health_by_index.items()
    }


def _from_row(row: Mapping[str, str], root: str) -> GpuHealth:
    bus = _normalise_bus(row.get("pci.bus_id", ""))
    rows, pages = row.get("remapped_rows.pending", ""), row.get("retired_pages.pending", "")
    clocks = next((row[name] for name in _CLOCK_FIELDS if row.get(name, "").startswith("0x")), "")
    enabled = {"Enabled": True, "Disabled": False}
    return GpuHealth(
        bus=bus,
        volatile=_parse_int(row.get("ecc.errors.uncorrected.volatile.total", "")),
        aggregate=_parse_int(row.get("ecc.errors.uncorrected.aggregate.total", "")),
        repair_pending=_any_known(_parse_yes_no(rows), _parse_yes_no(pages)),
        repair_failed=_parse_yes_no(row.get("remapped_rows.failure", "")),
        throttle_reasons=int(clocks, 16) if clocks else None,
        persistent=_is_persistent(enabled.get(row.get("persistence_mode", "")), root),
        mig=enabled.get(row.get("mig.mode.current", "")),
        pcie_width=_parse_int(row.get("pcie.link.width.current", "")),
        pcie_width_max=_parse_int(row.get("pcie.link.width.max", "")),
        numa_node=_numa_node(bus, root),
        error=next((word.strip("[]") for word in row.values() if word in _BROKEN_STATES), ""),
    )


def _query_gpu(library: nvml.Nvml, index: int, root: str) -> GpuHealth:
    """Ask NVML of one GPU."""
    device = library.handle(index)
    trouble = [""]

    def numbers(
        function: str, *args: object, count: int = 1, kind: Any = ctypes.c_uint
    ) -> List[Optional[int]]:
        try:
            return list(library.query_ints(function, device, *args, count=count, kind=kind))
        except nvml.NvmlError as error:
            trouble[0] = str(error) if error.broken else trouble[0]
            return [None] * count

    def errors(counter: int) -> Optional[int]:
        kinds = (ctypes.c_uint(_UNCORRECTED), ctypes.c_uint(counter))
        return numbers("nvmlDeviceGetTotalEccErrors", *kinds, kind=ctypes.c_ulonglong)[0]

    try:
        bus = library.pci_address(device)
    except nvml.NvmlError:
        bus = ""
    (pages,) = numbers("nvmlDeviceGetRetiredPagesPendingStatus")
    _, _, rows, failed = numbers("nvmlDeviceGetRemappedRows", count=4)
    mig = _to_bool(numbers("nvmlDeviceGetMigMode", count=2)[0])
    return GpuHealth(
        bus=bus,
        volatile=errors(_VOLATILE),
        aggregate=errors(_AGGREGATE),
        repair_pending=_any_known(_to_bool(rows), _to_bool(pages)),
        repair_failed=_to_bool(failed),
        throttle_reasons=numbers(
            "nvmlDeviceGetCurrentClocksThrottleReasons", kind=ctypes.c_ulonglong
        )[0],
        persistent=_is_persistent(_to_bool(numbers("nvmlDeviceGetPersistenceMode")[0]), root),
        mig=mig,
        instances=_count_mig_devices(library, device, numbers) if mig else 0,
        pcie_width=numbers("nvmlDeviceGetCurrPcieLinkWidth")[0],
        pcie_width_max=numbers("nvmlDeviceGetMaxPcieLinkWidth")[0],
        numa_node=_numa_node(bus, root),
        error=trouble[0],
    )


def _count_mig_devices(
    library: nvml.Nvml, device: ctypes.c_void_p, numbers: Callable[..., List[Optional[int]]]
) -> Optional[int]:
    """Count the MIG devices of a GPU; None where the driver does not tell how many may be."""
    (max_count,) = numbers("nvmlDeviceGetMaxMigDeviceCount")
    if max_count is None:
        return None
    count = 0
    for index in range(max_count):
        handle_args = (ctypes.c_uint(index), ctypes.byref(ctypes.c_void_p()))
        try:
            library.query_ints("nvmlDeviceGetMigDeviceHandleByIndex", device, *handle_args, count=0)
            count += 1
        except nvml.NvmlError:  # there is no device of this number
            continue
    return count


def _is_persistent(mode: Optional[bool], root: str) -> Optional[bool]:
    """Whether the driver stays loaded: by its own mode, or by the daemon that replaces it."""
    return (
        mode if mode is None else mode or os.path.exists(os.path.join(root, _PERSISTENCED_SOCKET))
    )


def _numa_node(bus: str, root: str) -> Optional[int]:
    """Return the NUMA node of a PCI device; a machine with one node may say -1."""
    if not bus:
        return None
    text = procfs.read_text(os.path.join(root, "sys/bus/pci/devices", f"{bus}.0", "numa_node"))
    return _parse_int(text.strip())


def _normalise_bus(text: str) -> str:
    """Return "00000000:3B:00.0" as the kernel's log and /sys write it: "0000:3b:00"."""
    parts: Tuple[str, ...] = tuple(text.lower().partition(".")[0].split(":"))
    return ":".join((parts[0][-4:], *parts[1:])) if len(parts) == 3 else ""


def _parse_int(text: str) -> Optional[int]:
    return int(text) if text.isdigit() else None


def _parse_yes_no(text: str) -> Optional[bool]:
    return {"yes": True, "no": False, "1": True, "0": False}.get(text.lower())


def _to_bool(number: Optional[int]) -> Optional[bool]:
    return None if number is None else number != 0


def _any_known(one: Optional[bool], other: Optional[bool]) -> Optional[bool]:
    flags = [flag for flag in (one, other) if flag is not None]
    return any(flags) if flags else None
