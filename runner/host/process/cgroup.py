"""Control groups of this process, whose limits of cores and memory bind it."""

from __future__ import annotations

import os
from typing import Dict, Iterator

from runner.host.process import procfs

UNIFIED = ""  # the hierarchy of version 2; those of version 1 are named by controller
UNIFIED_MOUNTS = ("sys/fs/cgroup", "sys/fs/cgroup/unified")  # alone, and beside version 1


def own_cgroups(root: str = "/") -> Dict[str, str]:
    """Return the cgroups of this process, by controller: "cpu", "name=systemd", `UNIFIED`."""
    cgroups: Dict[str, str] = {}
    for line in procfs.read_text(os.path.join(root, "proc/self/cgroup")).splitlines():
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
