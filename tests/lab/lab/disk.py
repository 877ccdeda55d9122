"""The disk that holds a host's homes."""

from __future__ import annotations

import shlex
import subprocess
from typing import TYPE_CHECKING

from tests.lab.lab.programs import LabError, first_line, run

if TYPE_CHECKING:
    from tests.lab.lab.anchor import LabNamespaces


class Disk:
    """A small file system of its own, so that it can be filled without harm to anything else.

    It belongs to the lab, not to the host: it outlives the host's power and dies with the lab.
    """

    def __init__(self, anchor: LabNamespaces, name: str, megabytes: int) -> None:
        self._anchor = anchor
        self._size = megabytes << 20
        self.lab_path = f"/run/disks/{name}"  # in the lab's mount namespace
        self._store = self.lab_path
        self.path = anchor.path(self.lab_path)  # never `resolve()` it: it is in /proc/PID/root
        self.full = False
        anchor.run(f"mkdir {shlex.quote(self.lab_path)}")
        self._mount()

    def _mount(self) -> None:
        options = f"mode=755,size={self._size}"
        self._anchor.run(f"mount -t tmpfs -o {options} lab-disk {shlex.quote(self._store)}")

    def freeze(self) -> None:
        raise LabError(f"{self.lab_path} is a disk that always answers")

    def thaw(self) -> None:
        """Lets go on who waits for it, if it was frozen."""

    def fill(self) -> None:
        """Leaves no free byte (new empty files still fit)."""
        self.full = True
        filler = shlex.quote(f"{self.lab_path}/.filler")
        path = shlex.quote(self.lab_path)
        # What is to be had at once is allocated without writing it; dd takes the last blocks.
        self._anchor.run(
            f"free=$(df --output=avail -B 1k {path} | tail -n 1);"
            f"fallocate -l $((free * 99 / 100))k {filler};"
            f"dd if=/dev/zero of={filler} bs=1k oflag=append conv=notrunc,fsync 2>/dev/null || :"
        )

    def free(self) -> None:
        self._anchor.run(f"rm -f {shlex.quote(self.lab_path)}/.filler")
        self.full = False


class FreezableDisk(Disk):
    """A disk that can be frozen (fsfreeze(8)): who writes to it then waits in the kernel.

    It is an ext4 image, since the kernel freezes no tmpfs.
    """

    def __init__(self, anchor: LabNamespaces, name: str, megabytes: int) -> None:
        self._freezer: subprocess.Popen[str] | None = None
        super().__init__(anchor, name, megabytes)

    def _mount(self) -> None:
        path = shlex.quote(self.lab_path)
        image = shlex.quote(f"{self.lab_path}.img")
        # Small blocks: on a full disk little more fits into the last block of a file. The lazy
        # initialisation would write to the image at its leisure, and the journal needs no room.
        options = "-q -F -b 1024 -m 0 -E lazy_itable_init=0,nodiscard -O ^has_journal"
        self._anchor.run(
            f"truncate -s {self._size} {image}; mkfs.ext4 {options} {image};"
            f"mount -o loop,noatime {image} {path}; rmdir {path}/lost+found; chmod 755 {path}"
        )

    def freeze(self) -> None:
        path = shlex.quote(self.lab_path)
        script = f"fsfreeze -f {path}; echo frozen; read -r _ || :; fsfreeze -u {path}"
        self._freezer = subprocess.Popen(
            [*self._anchor.enter_command("mount"), "sh", "-euc", script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        if first_line(self._freezer) != "frozen":
            raise LabError(f"{self.lab_path} cannot be frozen")

    def thaw(self) -> None:
        freezer, self._freezer = self._freezer, None
        if freezer is not None:
            freezer.communicate()


class NetworkDisk(Disk):
    """A disk behind a server, as NFS: who reads or writes waits while the server does not answer.

    The server is bindfs(1), a FUSE file system that passes everything on to the disk itself;
    `path` leads past it.
    """

    def _mount(self) -> None:
        self._store = f"{self.lab_path}.store"
        self.path = self._anchor.path(self._store)
        store, path = shlex.quote(self._store), shlex.quote(self.lab_path)
        self._anchor.run(f"mkdir {store}")
        super()._mount()
        options = "allow_other,attr_timeout=0,entry_timeout=0"  # each look asks the server
        self._server = self._run(
            f"bindfs -f -o {options} {store} {path} </dev/null >/dev/null 2>&1 & echo $!;"
            f"until mountpoint -q {path}; do kill -0 $!; sleep 0.01; done"
        ).strip()

    def freeze(self) -> None:
        self._run(f"kill -STOP {self._server}")

    def thaw(self) -> None:
        self._run(f"kill -CONT {self._server}")

    def _run(self, script: str) -> str:
        return run([*self._anchor.enter_command("mount", "pid"), "sh", "-euc", script])
