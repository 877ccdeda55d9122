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

SIGNS = ("/dev/nvidiactl", "/dev/dxg", "/proc/driver/nvidia/version", "/usr/bin/nvidia-smi")
"""Where none of these is, there is no driver."""


def start(
    environ: Dict[str, str], limit_s: float, *, health: bool = False
) -> List[bounded_child.Child]:
    """Ask the driver; no child at all where nothing hints at one."""
    if not any(map(os.path.exists, SIGNS)):
        return []
    return [bounded_child.Child(functools.partial(_run, environ, health), limit_s)]


def result(children: Sequence[bounded_child.Child]) -> Dict[str, Any]:
    """Return the fields of Facts that tell of GPUs: with who told of them, or why nobody did."""
    if not children:
        return {"gpus": (), "gpu_source": "none"}
    (child,) = children
    told = child.told()
    found = {
        "gpus": tuple(decode(Gpu, item) for item in told.get("gpus", ())),
        "driver": decode(Driver, told.get("driver", {})),
        "xids": tuple(decode(Xid, item) for item in told.get("xids", ())),
    }
    if "source" in told:
        return {**found, "gpu_source": told["source"]}
    if child.late:
        why = f"the driver did not answer within {child.limit_s:g} s"
        return {**found, "gpu_source": why}
    code = child.code or 0
    how = f"was ended by signal {-code}" if code < 0 else f"ended with {code}"
    return {**found, "gpu_source": f"the query of the driver {how}: {child.text}"}


def _run(environ: Dict[str, str], closely: bool) -> None:
    # Only in this child: ctypes and subprocess are dear, and a driver may hang or crash us.
    from runner.host.gpu import health, nvidia_smi, nvml, xids  # noqa: PLC0415

    if closely:  # first: of a driver that hangs, the log may know why
        bounded_child.tell(xids=encode(xids.seen()))
    found: List[Gpu] = []
    source = "nvml"
    library: Optional[nvml.Nvml] = None
    path = ""
    try:
        library = nvml.Nvml()
        for gpu in nvml.gpus(library):
            found.append(gpu)
            bounded_child.tell(gpus=encode(found))
    except nvml.NvmlError as error:
        source = f"NVML: {error}"
    if source != "nvml":
        path = bounded_child.find("nvidia-smi", environ)
        found, why = nvidia_smi.gpus(path) if path else (found, "not on PATH")
        source = f"{source}; nvidia-smi: {why}" if why else "nvidia-smi"
    bounded_child.tell(gpus=encode(found), source=source, driver=encode(health.driver(library)))
    if closely and found:
        known = health.by_nvml(library, found) if library and not path else health.by_smi(path)
        found = [replace(gpu, health=known.get(gpu.index)) for gpu in found]
        bounded_child.tell(gpus=encode(found))
    # Names come last: a look-up of a user in a directory service may take for ever.
    named = [replace(gpu, processes=tuple(map(_named, gpu.processes))) for gpu in found]
    bounded_child.tell(gpus=encode(named))


def _named(process: GpuProcess) -> GpuProcess:
    user, command = machine.owner(process.pid), machine.command(process.pid)
    return replace(process, user=user, command=command)
