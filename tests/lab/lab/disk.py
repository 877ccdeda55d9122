"""The disk that holds a host's homes."""

from __future__ import annotations

import os
import shlex
from typing import TYPE_CHECKING

from tests.lab.lab.programs import LabError

if TYPE_CHECKING:
    from tests.lab.lab.anchor import LabNamespaces


class Disk:
    """A small file system of its own, so that it can be filled without harm to anything else.

    It belongs to the lab, not to the host: it outlives the host's power and dies with the lab.

    Attributes:
        lab_path: Its path in the lab's mount namespace.
        path: The same place as this process sees it. Never `resolve()` it: it leads through
            /proc/PID/root.
    """

    def __init__(self, anchor: LabNamespaces, name: str, megabytes: int) -> None:
        self._anchor = anchor
        self._size = megabytes << 20
        self.lab_path = f"/run/disks/{name}"
        self.path = anchor.path(self.lab_path)
        self.full = False
        quoted_path = shlex.quote(self.lab_path)
        anchor.run(
            f"mkdir {quoted_path} && "
            f"mount -t tmpfs -o mode=755,size={self._size} lab-disk {quoted_path}"
        )

    def fill(self) -> None:
        """Leaves no byte free: the file system shrinks to what is in use."""
        self.full = True
        for _ in range(20):
            stat = os.statvfs(self.path)
            # A size of 0 would mean no limit.
            used = max((stat.f_blocks - stat.f_bfree) * stat.f_frsize, stat.f_frsize)
            try:
                self._resize(used)
            except LabError:  # somebody wrote in between
                continue
            return
        raise LabError(f"{self.lab_path} is written to faster than it can be filled")

    def free(self) -> None:
        """Gives the free space back."""
        self._resize(self._size)
        self.full = False

    def _resize(self, size: int) -> None:
        self._anchor.run(f"mount -o remount,size={size} {shlex.quote(self.lab_path)}")
