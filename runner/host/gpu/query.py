"""GPU query: the GPUs of this host and their users, by NVML, in a child with a deadline."""

from __future__ import annotations

import importlib
import os
from dataclasses import replace
from typing import Any, Dict, List, Optional, Tuple

from runner.core.codec import decode, encode
from runner.core.model.facts import Gpu, GpuProcess
from runner.core.model.hardware import Driver, Xid
from runner.host.process import bounded_child, procfs

DRIVER_PATHS: Tuple[str, ...] = (
    "/dev/nvidiactl",
    "/dev/dxg",
    "/proc/driver/nvidia/version",
    "/usr/bin/nvidia-smi",
)
"""A host without any of these has no driver."""


def has_driver() -> bool:
    """Return whether this host has a driver to ask."""
    return any(map(os.path.exists, DRIVER_PATHS))


def start(limit_s: float, *, health: bool = False) -> bounded_child.BoundedChild:
    """Query the driver in a child, which a driver may hang or crash."""
    importlib.import_module("runner.host.gpu.health")
    return bounded_child.BoundedChild(lambda: _query(health), limit_s)


def result(child: Optional[bounded_child.BoundedChild]) -> Dict[str, Any]:
    """Return the GPU fields of Facts; `gpu_source` says why there are none, if NVML failed."""
    if child is None:
        return {"gpus": (), "gpu_source": "none"}
    report = child.report()
    fields = {
        "gpus": tuple(decode(Gpu, item) for item in report.get("gpus", ())),
        "driver": decode(Driver, report.get("driver", {})),
        "xids": tuple(decode(Xid, item) for item in report.get("xids", ())),
    }
    code = child.code or 0
    if "source" in report:
        source = report["source"]
    elif child.timed_out:
        source = f"the driver did not answer within {child.limit_s:g} s"
    else:
        exit_text = f"was ended by signal {-code}" if code < 0 else f"ended with {code}"
        source = f"the query of the driver {exit_text}: {child.text}"
    return {**fields, "gpu_source": source}


def _query(with_health: bool) -> None:
    from runner.host.gpu import health, nvml  # noqa: PLC0415 (most hosts of a verb do without)

    if with_health:  # before NVML: if the driver hangs, the kernel's log may say why
        bounded_child.report_facts(xids=encode(health.read_xids()))
    gpus: List[Gpu] = []
    source = "nvml"
    library: Optional[nvml.Nvml] = None
    try:
        library = nvml.Nvml()
        for gpu in nvml.list_gpus(library):
            gpus.append(gpu)
            bounded_child.report_facts(gpus=encode(gpus))
    except nvml.NvmlError as error:
        source = f"NVML: {error}"
    driver = encode(health.driver(library))
    bounded_child.report_facts(gpus=encode(gpus), source=source, driver=driver)
    if with_health and library:
        gpus = [replace(gpu, health=health.gpu_health(library, gpu.index)) for gpu in gpus]
        bounded_child.report_facts(gpus=encode(gpus))
    # Names last: looking up a user in a directory service may never return.
    named = [replace(gpu, processes=tuple(map(_with_names, gpu.processes))) for gpu in gpus]
    bounded_child.report_facts(gpus=encode(named))


def _with_names(process: GpuProcess) -> GpuProcess:
    user = procfs.process_owner(process.pid)
    command = procfs.process_command(process.pid)
    return replace(process, user=user, command=command)
