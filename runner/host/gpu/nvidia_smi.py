"""GPUs as `nvidia-smi` tells of them, for hosts whose NVML we cannot load or understand."""

from __future__ import annotations

import subprocess
from typing import Dict, List, Sequence, Tuple

from runner.core.model.facts import Gpu, GpuProcess

_QUERY_GPUS = "--query-gpu=index,name,uuid,memory.total,memory.used"
_QUERY_APPS = "--query-compute-apps=gpu_uuid,pid,used_memory"
_FORMAT = "--format=csv,noheader,nounits"
_MIB = 1 << 20


def list_gpus(smi: str) -> Tuple[List[Gpu], str]:
    """Return the GPUs and "", or none and why `smi` knows of none."""
    code, devices = run_nvidia_smi([smi, _QUERY_GPUS, _FORMAT])
    gpus_found = parse_gpus(devices, run_nvidia_smi([smi, _QUERY_APPS, _FORMAT])[1])
    if gpus_found or code == 0 or "No devices were found" in devices:
        return gpus_found, ""
    return [], " ".join(devices.split()) or f"exit code {code}"


def parse_gpus(devices: str, apps: str) -> List[Gpu]:
    """Return the GPUs in the two answers of nvidia-smi; what is no row of theirs is skipped."""
    processes_by_uuid: Dict[str, List[GpuProcess]] = {}
    for uuid, pid, memory in _rows(apps, 3):
        if pid.isdigit():
            processes_by_uuid.setdefault(uuid, []).append(
                GpuProcess(int(pid), _mib_to_bytes(memory))
            )
    return [
        Gpu(
            index=int(index),
            name=_value_or_empty(name),
            error=_error_in_name(name),
            uuid=_value_or_empty(uuid),
            memory_total=_mib_to_bytes(total),
            memory_used=_mib_to_bytes(used),
            processes=tuple(processes_by_uuid.get(uuid, ())),
        )
        for index, name, uuid, total, used in _rows(devices, 5)
        if index.isdigit()
    ]


def _rows(text: str, width: int) -> List[List[str]]:
    rows = [[field.strip() for field in line.split(",")] for line in text.splitlines()]
    return [row for row in rows if len(row) == width]


def _mib_to_bytes(mebibytes: str) -> int:
    return int(mebibytes) * _MIB if mebibytes.isdigit() else 0


def _value_or_empty(text: str) -> str:
    """Return `text`, or "" for "[N/A]", "[Not Supported]", "[GPU is lost]" and their like."""
    return "" if text.startswith("[") else text


def _error_in_name(name: str) -> str:
    """Return why a GPU does not even tell its name, "" if it does or no reason is given."""
    reason = name.strip("[]")
    return reason if name.startswith("[") and reason not in ("N/A", "Not Supported") else ""


def run_nvidia_smi(argv: Sequence[str]) -> Tuple[int, str]:
    """Return the exit code of nvidia-smi, and all it printed."""
    completed = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    return completed.returncode, completed.stdout.decode(errors="replace")
