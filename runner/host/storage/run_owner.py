"""Who keeps a run, on which machine: so that nobody elsewhere takes it for dead, or ends it here.

The lock tells as a rule. But it is in /tmp, which may be emptied under a living run, and the run
folder may be on a disk of several machines, of which only one has the lock.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from dataclasses import dataclass
from typing import Dict, List, Optional

from runner.core.codec import decode, encode
from runner.core.protocol.paths import RunFolder
from runner.host.process import procfs
from runner.host.storage.run_folder import closed, read_order, write_aside

MACHINE, BOOT = "/etc/machine-id", "/proc/sys/kernel/random/boot_id"
PIDS = "/proc/self/ns/pid"

FRESH_S = 600.0
"""So long after its last sign a run on another machine counts as on."""

RESTARTED_S = 30.0
"""So long it may be kept by a container that looks like ours; afterwards that was restarted."""


@dataclass(frozen=True)
class Keeper:
    """The guardian and the supervisor of a run.

    Attributes:
        host: The hostname of their machine.
        machine: Its id; "" where it has none.
        boot: The id of the boot they run in.
        starts: When each began, in clock ticks since that boot, by pid.
        pids: Which PID namespace that is; "" where it cannot be told.
    """

    host: str
    machine: str
    boot: str
    starts: Dict[str, int]
    pids: str = ""

    @property
    def elsewhere(self) -> str:
        """The name of the machine, if it is known to be another than this one; else "".

        A machine may be renamed in between.
        """
        here = _here({})
        if self.pids and (self.boot, self.pids) == (here.boot, here.pids):
            return ""
        return "" if (self.host, self.machine) == (here.host, here.machine) else self.host

    @property
    def beside(self) -> bool:
        """Whether it is another container of this machine, or was: they may share all the rest."""
        here = _here({})
        return bool(self.pids) and self.boot == here.boot and self.pids != here.pids

    def alive(self) -> List[int]:
        """Return those who still live here."""
        if self.elsewhere or self.beside or self.boot != _here({}).boot:
            return []
        starts = {int(pid): start for pid, start in self.starts.items() if start >= 0}
        return [pid for pid, start in starts.items() if procfs.start_of(pid) == start]


def _here(starts: Dict[str, int]) -> Keeper:
    try:
        pids = os.readlink(PIDS)
    except OSError:
        pids = ""
    machine, boot = (procfs.read_text(path).strip() for path in (MACHINE, BOOT))
    return Keeper(os.uname().nodename, machine, boot, starts, pids)


def note(folder: RunFolder, pids: List[int]) -> None:
    """Put on record who keeps the run here; a full disk must not keep it from starting."""
    keeper = _here({str(pid): procfs.start_of(pid) for pid in pids})
    try:
        write_aside(folder.keeper, json.dumps(encode(keeper)) + "\n")
    except OSError:
        return


def touch(folder: RunFolder) -> None:
    """Give a sign of life to those on other machines who share the disk."""
    with contextlib.suppress(OSError):
        os.utime(folder.keeper)


def read(folder: RunFolder) -> Optional[Keeper]:
    """Return who keeps a run, or kept it; None where that is not on record, as in format 1."""
    try:
        with open(folder.keeper, encoding="utf-8") as file:
            return decode(Keeper, json.load(file))
    except (OSError, ValueError):
        return None


def keepers(folder: RunFolder) -> List[int]:
    """Return the living guardian and supervisor of a run on this machine."""
    keeper = read(folder)
    return keeper.alive() if keeper is not None else []


def this_boot(folder: RunFolder) -> bool:
    """Whether a run was kept on this machine, and since its last boot."""
    keeper = read(folder)
    return keeper is not None and not keeper.elsewhere and keeper.boot == _here({}).boot


def elsewhere(folder: RunFolder) -> str:
    """Return the name of the machine a run lives on, "" for this one or an unknown one."""
    keeper = read(folder)
    if keeper is None:
        return ""
    if keeper.beside and silence(folder) < RESTARTED_S:
        return f"another container of {keeper.host}"
    return keeper.elsewhere


def refuse_elsewhere(folder: RunFolder) -> None:
    """Do nothing to a run that another machine keeps.

    Raises:
        ValueError: It is such a one, and its end is not on record.
    """
    other = elsewhere(folder)
    order = read_order(folder)
    if other and (order is None or not closed(folder, order)):
        run_id, _ = folder.root.split("/")[-2:]
        sign = silence(folder)
        since = f" (its last sign is {sign:.0f} s old)" if sign > FRESH_S else ""
        raise ValueError(f"run {run_id} is on {other}{since}, and this is {os.uname().nodename}")


def silence(folder: RunFolder) -> float:
    """Return how many seconds ago the keepers of a run gave their last sign, as the disk says."""
    try:
        return max(0.0, time.time() - os.stat(folder.keeper).st_mtime)
    except OSError:
        return float("inf")
