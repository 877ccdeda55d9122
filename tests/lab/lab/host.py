"""One host of the lab."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import socket
import subprocess
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from tests.lab.lab.anchor import INSIDE, LabNamespaces
from tests.lab.lab.disk import Disk
from tests.lab.lab.files import HOMES, LOGIN_USER, HostFiles, HostPlan, make_homes
from tests.lab.lab.processes import Process, listens, processes
from tests.lab.lab.programs import (
    LabError,
    NamespacedProcess,
    first_line,
    run,
    sshd_path,
)
from tests.lab.lab.switch import INTERFACE, wait_links_up
from tests.lab.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.lab.lab.switch import Switch

Stream = int | IO[Any] | None
SSH_PORT = 22
CLOSED_PORT = 9
NAMESPACES = ("mount", "uts", "ipc", "net", "pid")
SSHD = ("sshd:", "sshd-auth:", "sshd-session:")
"""How the processes of a connection call themselves; the latter two from OpenSSH 9.8 on."""

# So that nothing of the tests' own environment leaks into a host.
HOST_ENV = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}


class Host:
    """A machine with sshd, a network, a disk, and a power switch.

    It has two accounts, root and alice (an ordinary user, whom all methods mean unless told
    otherwise), both with their home on its disk. `home` is hers as this process sees it, also while
    the host is off.
    """

    def __init__(
        self, plan: HostPlan, files: HostFiles, disk: Disk, anchor: LabNamespaces, switch: Switch
    ) -> None:
        self.name = plan.name
        self.address = plan.address
        self.home = disk.path / Path(HOMES[LOGIN_USER]).name
        self.console = files.console  # the log of its boot and its sshd
        self._plan = plan
        self._leg = plan.leg
        self._files = files
        self.disk = disk
        self._anchor = anchor
        self._switch = switch
        self._boot_process: subprocess.Popen[str] | None = None
        self._init_pid = 0
        self._is_plugged = True

    # Power

    @property
    def is_on(self) -> bool:
        """Whether it has power; a host whose PID 1 died has none."""
        return self._boot_process is not None and self._boot_process.poll() is None

    def start(self) -> None:
        """Switches it on and returns while it boots; `wait_ready` waits for the end of that."""
        assert not self.is_on
        self._clean_up_power_loss()
        network = self._switch.connect(self.name, self._leg)
        self._is_plugged = True
        enter = ["nsenter", f"--target={self._anchor.pid}", "--mount", "--pid", f"--net={network}"]
        unshare = ["unshare", "--mount", "--uts", "--ipc", "--pid", "--fork", "--kill-child"]
        boot = ["/bin/sh", f"{INSIDE}/boot.sh", str(self._files.folder), self.disk.lab_path]
        with self.console.open("a") as console:
            self._boot_process = subprocess.Popen(
                [*enter, "--", *unshare, "--", *boot, sshd_path()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=console,
                text=True,
                env=HOST_ENV,
                start_new_session=True,
            )
        self._init_pid = int(first_line(self._boot_process) or 0)

    def wait_ready(self) -> None:
        """Returns once its sshd listens and its network carries."""
        wait_until(lambda: not self.is_on or listens(self._init_pid, SSH_PORT), "sshd to listen")
        if not self.is_on:
            raise LabError(f"{self.name} did not boot:\n{self.console.read_text()}")
        self._wait_reachable()

    def power_on(self) -> None:
        """Boots it: same address, same disk, nothing else kept. Harmless if it is on."""
        if not self.is_on:
            self.start()
            self.wait_ready()

    def power_off(self) -> None:
        """Cuts the power: all its processes die at once, unheard. Harmless if it is off."""
        if self.is_on:
            self.unplug()  # or the kernel would send a FIN for every open connection
            os.kill(self._init_pid, signal.SIGKILL)
        self._clean_up_power_loss()

    def _clean_up_power_loss(self) -> None:
        if self._boot_process is None:
            return
        self._boot_process.wait()
        self._boot_process = None
        self._switch.disconnect(self.name, self._leg)

    def reap(self) -> None:
        """Reaps it after the whole lab has died."""
        if self._boot_process is not None:
            self._boot_process.wait()
            self._boot_process = None

    # Network

    def unplug(self) -> None:
        """Pulls its network cable: nothing gets through, and its interface loses its carrier."""
        self._switch.set_link(self._leg, up=False)
        self._is_plugged = False

    def plug(self) -> None:
        self._switch.set_link(self._leg, up=True)
        self._is_plugged = True
        self._wait_reachable()

    def _wait_reachable(self) -> None:
        ours = Path(f"/proc/{self._init_pid}/root/sys/class/net/{INTERFACE}")
        wait_links_up([ours, self._switch.interface(self._leg.port)])
        wait_until(self._answers, f"{self.name} to be reached")

    def _answers(self) -> bool:
        """Whether it is reached from here: ARP may be about to give up what it asked while off."""
        try:
            socket.create_connection((self.address, CLOSED_PORT), timeout=1).close()
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
        return True

    # Disk

    def reset_homes(self) -> None:
        for home in HOMES.values():
            for path in (self.disk.path / Path(home).name).iterdir():
                _remove(path)
        make_homes(self.disk.path, self._plan)

    def write(
        self, path: str, text: str, mode: int | None = None, *, user: str = LOGIN_USER
    ) -> None:
        """Writes a file and the folders it needs; a path is absolute, or below the user's home."""
        quoted_path = shlex.quote(path.removeprefix("~/"))
        chmod = "" if mode is None else f"chmod {mode:o} {quoted_path}"
        script = f'mkdir -p "$(dirname {quoted_path})" && cat > {quoted_path}\n{chmod}'
        self.sh(f"set -e\n{script}", user=user, stdin=text)

    # Processes

    def sh(
        self,
        command: str,
        *,
        user: str = LOGIN_USER,
        timeout: float = 20,
        check: bool = True,
        stdin: str = "",
    ) -> str:
        """Runs a shell command on the host, in the user's home, without ssh; returns its output."""
        argv = [*self._enter_command(user), "/bin/sh", "-c", f"cd\n{command}"]
        description = f"{self.name}: {command}"
        return run(
            argv,
            stdin=stdin,
            timeout=timeout,
            check=check,
            kind=NamespacedProcess,
            description=description,
        )

    @contextlib.contextmanager
    def changed(self, do: str, undo: str) -> Iterator[None]:
        """Let root do something on it, until it is undone."""
        self.sh(do, user="root")
        try:
            yield
        finally:
            self.sh(undo, user="root")

    def popen(
        self,
        argv: Sequence[str],
        *,
        user: str = LOGIN_USER,
        stdin: Stream = subprocess.DEVNULL,
        stdout: Stream = None,
        stderr: Stream = None,
    ) -> subprocess.Popen[str]:
        """Starts a program on the host, in the user's home, without ssh.

        Signals sent through the result reach the program, and its end is the result's.
        """
        return NamespacedProcess(
            [*self._enter_command(user), "/bin/sh", "-c", 'cd; exec "$@"', "sh", *argv],
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            text=True,
            start_new_session=True,
        )

    def _enter_command(self, user: str) -> list[str]:
        if not self.is_on:
            raise LabError(f"{self.name} is off")
        namespaces = (f"--{kind}" for kind in NAMESPACES)
        become = [f"--reuid={user}", f"--regid={user}", "--init-groups", "--reset-env"]
        enter = ["nsenter", f"--target={self._init_pid}", *namespaces, "--"]
        return [*enter, "setpriv", *become, "--"]

    def processes(self, tag: str = "") -> list[Process]:
        """Returns its processes with `tag` in their arguments or environment; no zombies."""
        if not self.is_on:
            return []
        return list(processes(Path(f"/proc/{self._init_pid}/root/proc"), tag))

    def kill(self, pid: int, sig: int = signal.SIGKILL) -> None:
        # The first process takes all others of the host with it, also the one that sends this.
        self.sh(f"kill -{int(sig)} {pid}", user="root", check=pid != 1)

    def leftovers(self) -> list[Process]:
        """Returns all that runs besides sshd and the sshd processes of open connections."""
        ours = (process for process in self.processes() if process.pid != 1)
        return [process for process in ours if not process.cmdline.startswith(SSHD)]

    def crashes(self) -> list[str]:
        """Returns what supervisors said on their own behalf: nothing, unless one crashed."""
        logs = self.home.parent.glob("*/.runner/runs/*/*/supervisor.log")
        return [log.read_text() for log in logs if log.stat().st_size]

    def kill_all(self) -> None:
        """Kills all that runs on it but its sshd; open connections die with it."""

        def only_sshd() -> bool:
            if {process.pid for process in self.processes()} <= {1}:
                return True
            self.sh("kill -KILL -1", user="root", check=False)  # the last may end by itself
            return False

        wait_until(only_sshd, f"{self.name} to be rid of its processes")

    # Repair

    def repair(self) -> None:
        """Undoes whatever was done to it with the methods above, and empties its /dev/shm.

        Its other files stay, and so do its processes.
        """
        self.power_on()
        if not self._is_plugged:
            self.plug()
        self.disk.thaw()
        if self.disk.full:
            self.disk.free()
        for path in Path(f"/proc/{self._init_pid}/root/dev/shm").iterdir():
            _remove(path)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()
