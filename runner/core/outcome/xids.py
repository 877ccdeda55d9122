"""What the well-known errors of NVIDIA GPUs mean, by their number (Xid), and the cure.

After NVIDIA's "Xid Errors" (docs.nvidia.com/deploy/xid-errors): its catalogue's description and
the action it names; of memory, its "GPU Memory Error Management" (a100-gpu-mem-error-mgmt).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict

CATALOGUE = "https://docs.nvidia.com/deploy/xid-errors/"

_RESET = "reset it (nvidia-smi --gpu-reset -i {gpu}, as root, nobody using it) or reboot"
_REPLACE = _RESET + "; if it comes again, the GPU or its board is to be replaced"


@dataclass(frozen=True)
class XidInfo:
    """One of them.

    Attributes:
        meaning: What happened, in a few words.
        remedy: What to do; "{gpu}" is the GPU's index.
        caused_by_program: Whether a program brings it about, so that the GPU is well as a rule.
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
    48: XidInfo("memory had an error that could not be corrected", _RESET),
    61: XidInfo("its own controller met an error", _RESET),
    62: XidInfo("its own controller halted", _RESET),
    63: XidInfo("bad memory is to be replaced at the next reset", _RESET),
    64: XidInfo("bad memory could not be replaced", _REPLACE),
    74: XidInfo(
        "an error on NVLink", _RESET + "; if it comes again, have link and board looked at"
    ),
    79: XidInfo(
        "it has fallen off the bus",
        "reboot; if it comes again, look at its power, cooling and slot",
    ),
    92: XidInfo(
        "its memory has many errors that were corrected", "have it tested (dcgmi diag -r 3)"
    ),
    94: XidInfo("a memory error, kept to the program that met it", _RESET),
    95: XidInfo("a memory error, not kept to one program", _RESET),
    119: XidInfo("its firmware (GSP) does not answer", _RESET + "; a newer driver may cure it"),
    120: XidInfo("its firmware (GSP) failed", _RESET + "; a newer driver may cure it"),
}
