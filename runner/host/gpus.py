"""The GPUs of this host and who uses them: NVML, else nvidia-smi, in a child with a deadline."""

from __future__ import annotations

import functools
import os
from dataclasses import replace
from typing import Dict, List, Sequence, Tuple

from runner.core.codec import decode, encode
from runner.core.facts import Gpu, GpuProcess
from runner.host import machine, probes

_SIGNS = ("/dev/nvidiactl", "/dev/dxg", "/proc/driver/nvidia/version", "/usr/bin/nvidia-smi")


def start(environ: Dict[str, str], limit_s: float) -> List[probes.Child]:
    """Ask the driver; no child at all where nothing hints at one."""
    if not any(map(os.path.exists, _SIGNS)):
        return []
    return [probes.Child(functools.partial(_run, environ), limit_s)]


def result(children: Sequence[probes.Child]) -> Tuple[Tuple[Gpu, ...], str]:
    """Return the GPUs and who told of them, or why nobody did."""
    if not children:
        return (), "none"
    (child,) = children
    told = child.told()
    found = tuple(decode(Gpu, item) for item in told.get("gpus", ()))
    if "source" in told:
        return found, told["source"]
    if child.late:
        return found, f"the driver did not answer within {child.limit_s:g} s"
    code = child.code or 0
    how = f"was ended by signal {-code}" if code < 0 else f"ended with {code}"
    return found, f"the query of the driver {how}: {child.text}"


def _run(environ: Dict[str, str]) -> None:
    # Both only in this child: ctypes and subprocess are dear, and a driver may hang or crash us.
    from runner.host import nvml, smi  # noqa: PLC0415

    found: List[Gpu] = []
    source = "nvml"
    try:
        for gpu in nvml.gpus(nvml.Nvml()):
            found.append(gpu)
            probes.tell(gpus=encode(found))
    except nvml.NvmlError as error:
        source = f"NVML: {error}"
    if source != "nvml":
        path = probes.find("nvidia-smi", environ)
        found, why = smi.gpus(path) if path else (found, "not on PATH")
        source = f"{source}; nvidia-smi: {why}" if why else "nvidia-smi"
    probes.tell(gpus=encode(found), source=source)
    # Names come last: a look-up of a user in a directory service may take for ever.
    named = [replace(gpu, processes=tuple(map(_named, gpu.processes))) for gpu in found]
    probes.tell(gpus=encode(named))


def _named(process: GpuProcess) -> GpuProcess:
    user, command = machine.owner(process.pid), machine.command(process.pid)
    return replace(process, user=user, command=command)
