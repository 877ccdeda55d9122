"""Control groups: those of this process, and one for the program of a run.

Whatever the program starts is in its cgroup, whatever it does to its parent and environment: an
empty cgroup (version 2 reports it) proves that nothing is left.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from typing import Dict, Iterator, List

from runner.host.process import procfs

UNIFIED = ""  # the hierarchy of version 2; those of version 1 are named by controller
UNIFIED_MOUNTS = ("sys/fs/cgroup", "sys/fs/cgroup/unified")  # alone, and beside version 1
EMPTY_TIMEOUT_S = 1.0  # how long the kernel may take to report that a cgroup is empty


class Cgroup:
    """The cgroup of one program: its folder, "" where none can be made."""

    def __init__(self, path: str = "") -> None:
        self.path = path

    def enter(self) -> None:
        """Move this process in, if that is allowed."""
        if self.path:
            with contextlib.suppress(OSError):
                _write_file(f"{self.path}/cgroup.procs", "0")

    def contains(self, pid: int) -> bool:
        """Return whether a process is in it; a zombie still is."""
        cgroup_path = own_cgroups(pid=str(pid)).get(UNIFIED, "")
        return bool(self.path) and os.path.basename(cgroup_path) == os.path.basename(self.path)

    def pids(self) -> List[int]:
        """Return the processes in it that can be seen, zombies left out."""
        if not self.path or self.empty:
            return []
        pids = []
        for folder, _, _ in os.walk(self.path):
            pids += [int(word) for word in procfs.read_text(f"{folder}/cgroup.procs").split()]
        return [pid for pid in pids if pid]  # 0: in a PID namespace that is not below ours

    def kill(self) -> None:
        """Kill all in it at once, so that no fork escapes (since Linux 5.14)."""
        if self.path:
            with contextlib.suppress(OSError):
                _write_file(f"{self.path}/cgroup.kill", "1")

    @property
    def empty(self) -> bool:
        """Whether the kernel reports that no process is in it."""
        return self._has_event("populated 0")

    def wait_empty(self) -> bool:
        """Return whether it is empty, now or in a moment; the kernel removes only an empty one."""
        deadline = time.monotonic() + EMPTY_TIMEOUT_S
        while self._has_event("populated 1") and time.monotonic() < deadline:
            time.sleep(0.005)
        return self.empty or not os.path.isdir(self.path)

    def remove(self) -> None:
        """Remove it, with what was made below it; one that is not empty stays."""
        deadline = time.monotonic() + EMPTY_TIMEOUT_S
        while self.empty and time.monotonic() < deadline:
            for folder, _, _ in os.walk(self.path, topdown=False):
                with contextlib.suppress(OSError):
                    os.rmdir(folder)
            if os.path.isdir(self.path):
                time.sleep(0.005)

    def _has_event(self, line: str) -> bool:
        events = procfs.read_text(f"{self.path}/cgroup.events") if self.path else ""
        return line in events.splitlines()


def create(run_id: str, node: str, attempt: int, root: str = "/") -> Cgroup:
    """Make a cgroup for a program below our own, where that is ours to divide."""
    folder = own_folder(root)
    cgroup = Cgroup(os.path.join(folder, _cgroup_name(run_id, node, attempt)))
    try:
        if folder:
            os.mkdir(cgroup.path, 0o755)
    except FileExistsError:  # left by a supervisor that died
        if cgroup.pids():
            return Cgroup()
    except OSError:
        return Cgroup()
    if folder and cgroup.empty:
        return cgroup
    with contextlib.suppress(OSError):
        os.rmdir(cgroup.path)
    return Cgroup()


def from_record(path: str, run_id: str, node: str, attempt: int) -> Cgroup:
    """Return the cgroup that a record names, none if that cannot be this program's."""
    return Cgroup(path if os.path.basename(path) == _cgroup_name(run_id, node, attempt) else "")


def own_folder(root: str = "/") -> str:
    """Return the folder of our own cgroup of version 2, "" where none can be seen."""
    own_path = own_cgroups(root).get(UNIFIED)
    if own_path is None or ".." in own_path.split("/"):
        return ""
    folders = [os.path.join(root, mount, own_path.lstrip("/")) for mount in UNIFIED_MOUNTS]
    return next((each for each in folders if os.path.isfile(f"{each}/cgroup.procs")), "")


def own_cgroups(root: str = "/", pid: str = "self") -> Dict[str, str]:
    """Return the cgroups of a process, by controller: "cpu", "name=systemd", `UNIFIED`."""
    cgroups: Dict[str, str] = {}
    for line in procfs.read_text(os.path.join(root, "proc", pid, "cgroup")).splitlines():
        controllers, _, path = line.partition(":")[2].partition(":")
        cgroups.update((controller, path) for controller in controllers.split(","))
    return cgroups


def ancestors(controller: str, root: str) -> Iterator[str]:
    """Yield the folder of every cgroup from the top down to ours; some are not there.

    What one of them limits binds all below it. In both versions: a hybrid host has both. In a
    container our path may be the host's; then only the top is ours to see.
    """
    cgroups = own_cgroups(root)
    places = [(mount, UNIFIED) for mount in UNIFIED_MOUNTS]
    for mount, name in (*places, (f"sys/fs/cgroup/{controller}", controller)):
        folder = os.path.join(root, mount)
        yield folder
        for part in cgroups.get(name, "/").split("/")[1:]:
            if part == "..":
                break
            folder = os.path.join(folder, part)
            yield folder


def _cgroup_name(run_id: str, node: str, attempt: int) -> str:
    text = f"{run_id}/{node}/{attempt}"
    return f"runner-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def _write_file(path: str, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)
