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
from runner.core.protocol.paths import RunPaths
from runner.host.process import procfs
from runner.host.storage.journal import has_ended
from runner.host.storage.run_folder import read_order, write_atomic

MACHINE_ID_PATH, BOOT_ID_PATH = "/etc/machine-id", "/proc/sys/kernel/random/boot_id"
PID_NAMESPACE_PATH = "/proc/self/ns/pid"

OWNER_TIMEOUT_S = 600.0
"""So long after its last sign a run on another machine counts as on."""

CONTAINER_TIMEOUT_S = 30.0
"""So long it may be kept by a container that looks like ours; afterwards that was restarted."""


@dataclass(frozen=True)
class RunOwner:
    """The guardian and the supervisor of a run.

    Attributes:
        hostname: The hostname of their machine.
        machine_id: Its id; "" where it has none.
        boot_id: The id of the boot they run in.
        start_ticks: When each began, in clock ticks since that boot, by pid.
        pid_namespace: Which PID namespace that is; "" where it cannot be told.
    """

    hostname: str
    machine_id: str
    boot_id: str
    start_ticks: Dict[str, int]
    pid_namespace: str = ""

    @property
    def other_host(self) -> str:
        """The name of the machine, if it is known to be another than this one; else "".

        A machine may be renamed in between.
        """
        local = _local_owner({})
        if self.pid_namespace and (self.boot_id, self.pid_namespace) == (
            local.boot_id,
            local.pid_namespace,
        ):
            return ""
        return (
            ""
            if (self.hostname, self.machine_id) == (local.hostname, local.machine_id)
            else self.hostname
        )

    @property
    def is_sibling_container(self) -> bool:
        """Whether it is another container of this machine, or was: they may share all the rest."""
        local = _local_owner({})
        return (
            bool(self.pid_namespace)
            and self.boot_id == local.boot_id
            and self.pid_namespace != local.pid_namespace
        )

    def live_pids(self) -> List[int]:
        """Return those who still live here."""
        if self.other_host or self.is_sibling_container or self.boot_id != _local_owner({}).boot_id:
            return []
        start_ticks = {int(pid): start for pid, start in self.start_ticks.items() if start >= 0}
        return [pid for pid, start in start_ticks.items() if procfs.start_ticks_of(pid) == start]


def _local_owner(start_ticks: Dict[str, int]) -> RunOwner:
    try:
        pid_namespace = os.readlink(PID_NAMESPACE_PATH)
    except OSError:
        pid_namespace = ""
    machine_id, boot_id = (
        procfs.read_text(path).strip() for path in (MACHINE_ID_PATH, BOOT_ID_PATH)
    )
    return RunOwner(os.uname().nodename, machine_id, boot_id, start_ticks, pid_namespace)


def record(folder: RunPaths, pids: List[int]) -> None:
    """Put on record who keeps the run here; a full disk must not keep it from starting."""
    owner = _local_owner({str(pid): procfs.start_ticks_of(pid) for pid in pids})
    try:
        write_atomic(folder.owner_file, json.dumps(encode(owner)) + "\n")
    except OSError:
        return


def heartbeat(folder: RunPaths) -> None:
    """Give a sign of life to those on other machines who share the disk."""
    with contextlib.suppress(OSError):
        os.utime(folder.owner_file)


def read(folder: RunPaths) -> Optional[RunOwner]:
    """Return the owner on record of a run, None where there is none that can be read."""
    try:
        with open(folder.owner_file, encoding="utf-8") as file:
            return decode(RunOwner, json.load(file))
    except (OSError, ValueError):
        return None


def live_owner_pids(folder: RunPaths) -> List[int]:
    """Return the living guardian and supervisor of a run on this machine."""
    owner = read(folder)
    return owner.live_pids() if owner is not None else []


def is_from_this_boot(folder: RunPaths) -> bool:
    """Whether a run was kept on this machine, and since its last boot."""
    owner = read(folder)
    return owner is not None and not owner.other_host and owner.boot_id == _local_owner({}).boot_id


def other_host(folder: RunPaths) -> str:
    """Return the name of the machine a run lives on, "" for this one or an unknown one."""
    owner = read(folder)
    if owner is None:
        return ""
    if owner.is_sibling_container and heartbeat_age(folder) < CONTAINER_TIMEOUT_S:
        return f"another container of {owner.hostname}"
    return owner.other_host


def require_local(folder: RunPaths) -> None:
    """Do nothing to a run that another machine keeps.

    Raises:
        ValueError: It is such a one, and its end is not on record.
    """
    host = other_host(folder)
    order = read_order(folder)
    if host and (order is None or not has_ended(folder, order)):
        run_id, _ = folder.root.split("/")[-2:]
        age_s = heartbeat_age(folder)
        age_text = f" (its last sign is {age_s:.0f} s old)" if age_s > OWNER_TIMEOUT_S else ""
        raise ValueError(f"run {run_id} is on {host}{age_text}, and this is {os.uname().nodename}")


def heartbeat_age(folder: RunPaths) -> float:
    """Return how many seconds ago the keepers of a run gave their last sign, as the disk says."""
    try:
        return max(0.0, time.time() - os.stat(folder.owner_file).st_mtime)
    except OSError:
        return float("inf")
