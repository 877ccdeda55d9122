"""Xids: meaning and remedy of the well-known errors of NVIDIA GPUs, by number.

After NVIDIA's "Xid Errors" (docs.nvidia.com/deploy/xid-errors) and, for memory, its "GPU Memory
Error Management" (a100-gpu-mem-error-mgmt).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict

CATALOGUE = "https://docs.nvidia.com/deploy/xid-errors/"

_RESET = "reset it (nvidia-smi --gpu-reset -i {gpu}, as root, while it is not in use) or reboot"
_REPLACE = _RESET + "; if it recurs, replace the GPU or its board"


@dataclass(frozen=True)
class XidInfo:
    """One error.

    Attributes:
        meaning: What happened, in a few words.
        remedy: What to do; "{gpu}" is the GPU's index.
        caused_by_program: Whether programs usually cause it, so that the GPU is healthy.
    """

    meaning: str
    remedy: str
    caused_by_program: bool = False


XIDS: Dict[int, XidInfo] = {
    13: XidInfo("an illegal access or instruction of a kernel", "", caused_by_program=True),
    31: XidInfo("a program read or wrote memory that is not its own", "", caused_by_program=True),
    43: XidInfo("a program's kernel failed, and it was stopped", "", caused_by_program=True),
    45: XidInfo(
        "a program was cleaned up after an earlier error, or killed", "", caused_by_program=True
    ),
    48: XidInfo("an uncorrectable memory error", _RESET),
    61: XidInfo("its microcontroller had an error", _RESET),
    62: XidInfo("its microcontroller halted", _RESET),
    63: XidInfo("bad memory is replaced at the next reset", _RESET),
    64: XidInfo("bad memory could not be replaced", _REPLACE),
    74: XidInfo("an error on NVLink", _RESET + "; if it recurs, have link and board inspected"),
    79: XidInfo(
        "it has fallen off the bus",
        "reboot; if it recurs, check its power, cooling and slot",
    ),
    92: XidInfo("its memory had many corrected errors", "have it tested (dcgmi diag -r 3)"),
    94: XidInfo("a memory error, contained to one program", _RESET),
    95: XidInfo("a memory error, not contained to one program", _RESET),
    119: XidInfo("its firmware (GSP) does not answer", _RESET + "; a newer driver may cure it"),
    120: XidInfo("its firmware (GSP) failed", _RESET + "; a newer driver may cure it"),
}
