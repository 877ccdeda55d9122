"""The GPUs of this host and who uses them: NVML, else nvidia-smi, in a child with a deadline."""

from __future__ import annotations

import functools
import os
from dataclasses import replace
from typing import Any, Dict, List, Optional, Sequence

from runner.core.codec import decode, encode
from runner.core.model.facts import Gpu, GpuProcess
from runner.core.model.hardware import Driver, Xid
from runner.host.facts import machine
from runner.host.process import bounded_child

DRIVER_PATHS = ("/dev/nvidiactl", "/dev/dxg", "/proc/driver/nvidia/version", "/usr/bin/nvidia-smi")
"""Where none of these is, there is no driver."""


def start(
    environ: Dict[str, str], limit_s: float, *, health: bool = False
) -> List[bounded_child.BoundedChild]:
    """Ask the driver; no child at all where nothing hints at one."""
    if not any(map(os.path.exists, DRIVER_PATHS)):
        return []
    return [bounded_child.BoundedChild(functools.partial(_query, environ, health), limit_s)]


def result(children: Sequence[bounded_child.BoundedChild]) -> Dict[str, Any]:
    """Return the fields of Facts that tell of GPUs: with who told of them, or why nobody did."""
    if not children:
        return {"gpus": (), "gpu_source": "none"}
    (child,) = children
    report = child.report()
    fields = {
        "gpus": tuple(decode(Gpu, item) for item in report.get("gpus", ())),
        "driver": decode(Driver, report.get("driver", {})),
        "xids": tuple(decode(Xid, item) for item in report.get("xids", ())),
    }
    if "source" in report:
        return {**fields, "gpu_source": report["source"]}
    if child.timed_out:
        reason = f"the driver did not answer within {child.limit_s:g} s"
        return {**fields, "gpu_source": reason}
    code = child.code or 0
    exit_text = f"was ended by signal {-code}" if code < 0 else f"ended with {code}"
    return {**fields, "gpu_source": f"the query of the driver {exit_text}: {child.text}"}


def _query(environ: Dict[str, str], with_health: bool) -> None:
    # Only in this child: ctypes and subprocess are dear, and a driver may hang or crash us.
    from runner.host.gpu import health, nvidia_smi, nvml, xids  # noqa: PLC0415

    if with_health:  # first: of a driver that hangs, the log may know why
        bounded_child.report_facts(xids=encode(xids.read_xids()))
    gpus_found: List[Gpu] = []
    source = "nvml"
    library: Optional[nvml.Nvml] = None
    path = ""
    try:
        library = nvml.Nvml()
        for gpu in nvml.list_gpus(library):
            gpus_found.append(gpu)
            bounded_child.report_facts(gpus=encode(gpus_found))
    except nvml.NvmlError as error:
        source = f"NVML: {error}"
    if source != "nvml":
        path = bounded_child.find_program("nvidia-smi", environ)
        gpus_found, error_text = nvidia_smi.list_gpus(path) if path else (gpus_found, "not on PATH")
        source = f"{source}; nvidia-smi: {error_text}" if error_text else "nvidia-smi"
    bounded_child.report_facts(
        gpus=encode(gpus_found), source=source, driver=encode(health.driver(library))
    )
    if with_health and gpus_found:
        health_by_index = (
            health.by_nvml(library, gpus_found) if library and not path else health.by_smi(path)
        )
        gpus_found = [replace(gpu, health=health_by_index.get(gpu.index)) for gpu in gpus_found]
        bounded_child.report_facts(gpus=encode(gpus_found))
    # Names come last: a look-up of a user in a directory service may take for ever.
    named = [replace(gpu, processes=tuple(map(_with_names, gpu.processes))) for gpu in gpus_found]
    bounded_child.report_facts(gpus=encode(named))


def _with_names(process: GpuProcess) -> GpuProcess:
    user, command = machine.process_owner(process.pid), machine.process_command(process.pid)
    return replace(process, user=user, command=command)
