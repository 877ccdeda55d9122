"""What the well-known errors of NVIDIA GPUs mean, by their number (Xid), and the cure.

After NVIDIA's "Xid Errors" (docs.nvidia.com/deploy/xid-errors): its catalogue's description and
the action it names; of memory, its "GPU Memory Error Management" (a100-gpu-mem-error-mgmt).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict

CATALOGUE = "https://docs.nvidia.com/deploy/xid-errors/"

_RESET = "reset it (nvidia-smi --gpu-reset -i {gpu}, as root, nobody using it) or reboot"
_MEND = _RESET + "; if it comes again, the GPU or its board is to be replaced"


@dataclass(frozen=True)
class Known:
    """One of them.

    Attributes:
        means: What happened, in a few words.
        cure: What to do; "{gpu}" is the GPU's index.
        of_program: Whether a program brings it about, so that the GPU is well as a rule.
    """

    means: str
    cure: str
    of_program: bool = False


KNOWN: Dict[int, Known] = {
    13: Known("an illegal access or instruction of a kernel", "", of_program=True),
    31: Known("a program read or wrote memory that is not its own", "", of_program=True),
    43: Known("a program's kernel failed, and it was stopped", "", of_program=True),
    45: Known("a program was cleaned up after an earlier error, or killed", "", of_program=True),
    48: Known("memory had an error that could not be corrected", _RESET),
    61: Known("its own controller met an error", _RESET),
    62: Known("its own controller halted", _RESET),
    63: Known("bad memory is to be replaced at the next reset", _RESET),
    64: Known("bad memory could not be replaced", _MEND),
    74: Known("an error on NVLink", _RESET + "; if it comes again, have link and board looked at"),
    79: Known(
        "it has fallen off the bus",
        "reboot; if it comes again, look at its power, cooling and slot",
    ),
    92: Known("its memory has many errors that were corrected", "have it tested (dcgmi diag -r 3)"),
    94: Known("a memory error, kept to the program that met it", _RESET),
    95: Known("a memory error, not kept to one program", _RESET),
    119: Known("its firmware (GSP) does not answer", _RESET + "; a newer driver may cure it"),
    120: Known("its firmware (GSP) failed", _RESET + "; a newer driver may cure it"),
}
