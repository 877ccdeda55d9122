"""GPUs as `nvidia-smi` tells of them, for hosts whose NVML we cannot load or understand."""

from __future__ import annotations

import subprocess
from typing import Dict, List, Sequence, Tuple

from runner.core.model.facts import Gpu, GpuProcess

_GPUS = "--query-gpu=index,name,uuid,memory.total,memory.used"
_APPS = "--query-compute-apps=gpu_uuid,pid,used_memory"
_FORMAT = "--format=csv,noheader,nounits"
_MIB = 1 << 20


def gpus(smi: str) -> Tuple[List[Gpu], str]:
    """Return the GPUs and "", or none and why `smi` knows of none."""
    code, devices = output([smi, _GPUS, _FORMAT])
    found = parse(devices, output([smi, _APPS, _FORMAT])[1])
    if found or code == 0 or "No devices were found" in devices:
        return found, ""
    return [], " ".join(devices.split()) or f"exit code {code}"


def parse(devices: str, apps: str) -> List[Gpu]:
    """Return the GPUs in the two answers of nvidia-smi; what is no row of theirs is skipped."""
    users: Dict[str, List[GpuProcess]] = {}
    for uuid, pid, memory in _rows(apps, 3):
        if pid.isdigit():
            users.setdefault(uuid, []).append(GpuProcess(int(pid), _bytes(memory)))
    return [
        Gpu(
            index=int(index),
            name=_known(name),
            error=_why(name),
            uuid=_known(uuid),
            memory_total=_bytes(total),
            memory_used=_bytes(used),
            processes=tuple(users.get(uuid, ())),
        )
        for index, name, uuid, total, used in _rows(devices, 5)
        if index.isdigit()
    ]


def _rows(text: str, width: int) -> List[List[str]]:
    rows = [[field.strip() for field in line.split(",")] for line in text.splitlines()]
    return [row for row in rows if len(row) == width]


def _bytes(mebibytes: str) -> int:
    return int(mebibytes) * _MIB if mebibytes.isdigit() else 0


def _known(text: str) -> str:
    """Return `text`, or "" for "[N/A]", "[Not Supported]", "[GPU is lost]" and their like."""
    return "" if text.startswith("[") else text


def _why(name: str) -> str:
    """Return why a GPU does not even tell its name, "" if it does or no reason is given."""
    words = name.strip("[]")
    return words if name.startswith("[") and words not in ("N/A", "Not Supported") else ""


def output(argv: Sequence[str]) -> Tuple[int, str]:
    """Return the exit code of nvidia-smi, and all it printed."""
    done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    return done.returncode, done.stdout.decode(errors="replace")
