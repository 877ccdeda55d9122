"""The namespaces a whole lab lives in."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.lab.lab.programs import LabError, first_line, run

INSIDE = Path(__file__).parent / "inside"
"""Programs that run in the lab's namespaces; they know nothing of this package."""


class LabNamespaces:
    """A PID, a mount and a network namespace that live exactly as long as this process.

    Not as long as the thread that made them, as a parent-death signal would have it.
    """

    def __init__(self, folder: Path) -> None:
        """`folder` is removed if this process dies and cannot do so itself."""
        own_pidfd = os.pidfd_open(os.getpid())
        log = folder / "anchor.log"
        program = [sys.executable, "-I", "-S", f"{INSIDE}/anchor.py", str(own_pidfd), str(folder)]
        with log.open("w") as errors:
            self._process = subprocess.Popen(
                ["unshare", "--pid", "--mount", "--net", "--fork", "--kill-child", "--", *program],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                pass_fds=[own_pidfd],
                start_new_session=True,  # the terminal's Ctrl-C is for the tests alone
            )
        os.close(own_pidfd)
        pid = first_line(self._process)
        if not pid:
            self._process.wait()
            raise LabError(f"the lab's namespaces ended at once:\n{log.read_text()}")
        self.pid = int(pid)  # of their PID 1, as this process sees it
        # A /run of its own holds its network namespaces, disks and interfaces: none of them has a
        # name that the machine, or another lab, could see.
        self.run(
            "mount -t tmpfs -o mode=755 lab /run; cd /run; mkdir netns disks stage sys;"
            "mount -t sysfs sysfs sys"
        )

    def enter_command(self, *namespaces: str) -> list[str]:
        """Returns the words that put a command into some of the namespaces ("mount", "pid")."""
        return ["nsenter", f"--target={self.pid}", *(f"--{kind}" for kind in namespaces), "--"]

    def run(self, script: str) -> str:
        """Runs a shell script that sees the lab's mounts and its switch."""
        return run([*self.enter_command("mount", "net"), "sh", "-euc", script])

    def ip(self, *lines: str, force: bool = False) -> None:
        """Runs a batch of `ip` commands at the switch; `force` goes on after one that fails."""
        options = ["-force"] if force else []
        batch = "".join(f"{line}\n" for line in lines)
        enter = self.enter_command("mount", "net")
        run([*enter, "ip", *options, "-batch", "-"], stdin=batch, check=not force)

    def path(self, inside: str) -> Path:
        """Returns where this process finds an absolute path of the lab's mount namespace."""
        return Path(f"/proc/{self.pid}/root{inside}")

    def close(self) -> None:
        """Kills all that lives in the namespaces; when this returns, nothing of it runs."""
        if self._process.poll() is None:
            os.kill(self.pid, signal.SIGKILL)
            self._process.wait()
