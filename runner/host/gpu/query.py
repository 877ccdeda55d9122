"""GPU query: the GPUs of this host, their users and health, by NVML, in a child with a deadline.

For the health, NVML is asked for each value on its own: one that the driver does not know or
withholds stays None.
"""

from __future__ import annotations

import ctypes
import os
import re
from dataclasses import replace
from typing import Any, Callable, Dict, List, Optional, Tuple

from runner.core.wire.codec import decode, encode
from runner.core.wire.facts import Driver, Gpu, GpuHealth, GpuProcess
from runner.core.wire.paths import is_run_id
from runner.host.gpu import nvml
from runner.host.process import bounded_child, procfs

DRIVER_PATHS: Tuple[str, ...] = (
    "/dev/nvidiactl",
    "/dev/dxg",
    "/proc/driver/nvidia/version",
    "/usr/bin/nvidia-smi",
)
"""A host without any of these has no driver."""

_UNCORRECTED = 1  # nvmlMemoryErrorType_t
_VOLATILE = 0  # nvmlEccCounterType_t


def has_driver() -> bool:
    return any(map(os.path.exists, DRIVER_PATHS))


def start(limit_s: float, *, health: bool = False) -> bounded_child.BoundedChild:
    return bounded_child.BoundedChild(lambda: _query(health), limit_s)


def result(child: Optional[bounded_child.BoundedChild]) -> Dict[str, Any]:
    """Return the GPU fields of Facts; `gpu_source` says why there are none, if NVML failed."""
    if child is None:
        return {"gpus": (), "gpu_source": "none"}
    report = child.report()
    code = child.code or 0
    if "source" in report:
        source = report["source"]
    elif child.timed_out:
        source = f"the driver did not answer within {child.limit_s:g} s"
    else:
        exit_text = f"was ended by signal {-code}" if code < 0 else f"ended with {code}"
        source = f"the query of the driver {exit_text}: {child.text}"
    return {
        "gpus": tuple(decode(Gpu, item) for key, item in report.items() if key.startswith("gpu ")),
        "driver": decode(Driver, report.get("driver", {})),
        "gpu_source": source,
    }


def _query(with_health: bool) -> None:
    gpus: List[Gpu] = []
    source = "nvml"
    try:
        library = nvml.Nvml()
        bounded_child.report_facts(driver=encode(nvml.known(library.driver) or Driver()))
        for index in range(library.device_count()):
            gpus.append(read_gpu(library, index, with_health=with_health))
            _report(gpus[-1])
    except nvml.NvmlError as error:
        source = f"NVML: {error}"
    bounded_child.report_facts(source=source)
    for gpu in gpus:  # looking up a user in a directory service may never return
        _report(replace(gpu, processes=tuple(map(named, gpu.processes))))


def _report(gpu: Gpu) -> None:
    bounded_child.report_facts(**{f"gpu {gpu.index}": encode(gpu)})


def named(process: GpuProcess, user_name: Callable[[int], str] = procfs.user_name) -> GpuProcess:
    """Return a process with whose it is, as far as that can be seen."""
    folder = f"/proc/{process.pid}"
    match = re.search(r"(?:^|\0)RUNNER_RUN_ID=([^\0]*)", procfs.read_text(f"{folder}/environ"))
    run_id = match[1] if match and is_run_id(match[1]) else ""
    try:
        user = user_name(os.stat(folder).st_uid)
    except OSError:
        user = ""
    return replace(process, user=user, command=procfs.process_command(process.pid), run_id=run_id)


def read_gpu(library: nvml.Nvml, index: int, *, with_health: bool) -> Gpu:
    """Return a GPU; a broken one has only its index and the error."""
    name = uuid = error = ""
    processes: Tuple[GpuProcess, ...] = ()
    health = None
    try:  # what a restricted device may withhold comes last
        device = library.handle(index)
        health = gpu_health(library, device) if with_health else None
        name = library.query_text("nvmlDeviceGetName", device)
        uuid = library.query_text("nvmlDeviceGetUUID", device)
        processes = library.processes(device)
    except nvml.NvmlError as failure:
        error = str(failure) if failure.broken or not name else ""
    return Gpu(index, name, uuid, processes, error, health)


def gpu_health(library: nvml.Nvml, device: ctypes.c_void_p) -> GpuHealth:
    kinds = (ctypes.c_uint(_UNCORRECTED), ctypes.c_uint(_VOLATILE))
    try:
        errors = library.known_ints(
            "nvmlDeviceGetTotalEccErrors", device, *kinds, kind=ctypes.c_ulonglong
        )
        pages = library.known_ints("nvmlDeviceGetRetiredPagesPendingStatus", device)
        rows = library.known_ints("nvmlDeviceGetRemappedRows", device, count=4)
    except nvml.NvmlError as error:  # it is broken
        return GpuHealth(error=str(error))
    repairs = [number for number in (rows[2], pages[0]) if number is not None]
    return GpuHealth(
        volatile=errors[0],
        repair_pending=any(repairs) if repairs else None,
        repair_failed=None if rows[3] is None else rows[3] != 0,
    )
