"""Container engines on hosts of the lab: a daemon for each, and images of what the machine has."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.lab.lab import Lab
from tests.lab.lab.host import Host
from tests.lab.launching import ROOT
from tests.lab.waiting import PATIENCE, wait_until

DOCKER, DOCKERD = "/usr/bin/docker", "/usr/sbin/dockerd"
"""Debian's: another client may come first on the PATH."""

FOLDER = "/run/engine"
IMAGE = "bare"
COMMANDS = ("sh", "cat", "sleep", "true", "false", "echo", "env", "id", "ls", "mkdir")
SYSTEM_MOUNTS = ("/usr:/usr:ro", "/usr/lib:/lib:ro", "/usr/lib64:/lib64:ro")
"""With them, the image that holds nothing but a shell has the machine's Python."""


def missing() -> str:
    """Return what docker needs and this machine lacks, "" for nothing."""
    absent = [path for path in (DOCKER, DOCKERD, "/bin/busybox") if not Path(path).exists()]
    return f"docker needs {', '.join(absent)}" if absent else ""


def mounts() -> list[str]:
    """Return the mounts by which the interpreter of the tests, and they themselves, are inside."""
    folders = {str(ROOT), sys.prefix, sys.base_prefix, os.path.realpath(sys.prefix)}
    return [*SYSTEM_MOUNTS, *(f"{path}:{path}:ro" for path in sorted(folders - {"/usr"}))]


def overrides(
    *more: str, python: str = "/usr/bin/python3", engine: str = "docker", program: str = DOCKER
) -> list[str]:
    """Return the words of a launch in the bare image."""
    return [
        f"container={engine}",
        f"container.program={program}",
        f"container.image={IMAGE}",
        f"container.python={python}",
        f"container.mounts={json.dumps(mounts())}",
        *more,
    ]


class Daemon:
    """A dockerd on a host, whose socket the ordinary user may use, or another group."""

    def __init__(self, host: Host, image: Path, *, survives: bool, group: str = "alice") -> None:
        self.host, self._image, self._group = host, image, group
        self._config = json.dumps({"live-restore": survives})
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        if self._process is not None:
            self._process.wait(20 * PATIENCE)
        write = f"mkdir -p {FOLDER} && echo '{self._config}' >{FOLDER}/daemon.json"
        self.host.sh(write, user="root")
        flags = ["--bridge=none", "--iptables=false", "--ip-forward=false", "--ip-masq=false"]
        places = [f"--data-root={FOLDER}/root", f"--exec-root={FOLDER}/exec"]
        argv = [DOCKERD, f"--config-file={FOLDER}/daemon.json", *flags, *places]
        argv.append(f"--group={self._group}")
        script = f"exec {' '.join(argv)} --pidfile={FOLDER}/pid >>{FOLDER}/log 2>&1"
        self._process = self.host.popen(["/bin/sh", "-c", script], user="root")
        wait_until(self.answers, f"docker on {self.host.name}", 30, detail=self.log)

    def answers(self) -> bool:
        question = f"{DOCKER} ps -q >/dev/null 2>&1 && echo yes"
        return "yes" in self.host.sh(question, user="root", check=False)

    def log(self) -> str:
        return self.host.sh(f"tail -n 20 {FOLDER}/log", user="root", check=False)

    def kill(self, signum: int = 9) -> None:
        self.host.sh(f"kill -{signum} $(cat {FOLDER}/pid)", user="root", check=False)
        if self._process is not None:
            self._process.wait(20 * PATIENCE)

    def pause(self) -> None:
        """Have it answer nothing; see `resume`."""
        self.host.sh(f"kill -STOP $(cat {FOLDER}/pid)", user="root")

    def resume(self) -> None:
        """Have it go on, and nsenter, which has stopped with it."""
        self.host.sh(f"kill -CONT $(cat {FOLDER}/pid)", user="root")
        if self._process is not None:
            os.kill(self._process.pid, signal.SIGCONT)

    def revive(self) -> None:
        """Start it again, with the image, if it has died, perhaps with its host."""
        if not self.answers():
            self.start()
        if not self.host.sh(f"{DOCKER} images -q {IMAGE}", user="root"):
            build = f"{DOCKER} build -q -t {IMAGE} {self._image}"
            self.host.sh(build, user="root", timeout=60)

    def containers(self, *, everyone: bool = True) -> list[str]:
        """Return the names of all containers, or of those that run."""
        flags = "-a" if everyone else ""
        return self.host.sh(f"{DOCKER} ps {flags} --format '{{{{.Names}}}}'").split()

    def clear(self) -> None:
        self.host.sh(f"{DOCKER} ps -aq | xargs -r {DOCKER} rm -f", check=False)

    def close(self) -> None:
        if self.answers():
            self.clear()
        self.kill(15)
        mounts = f"grep -o ' {FOLDER}/[^ ]*' /proc/mounts | sort -r"
        self.host.sh(f"{mounts} | xargs -r -n1 umount -l", user="root", check=False)


def make_image(folder: Path) -> Path:
    """Write the files of an image that has a shell and places to mount at, and nothing else."""
    image = folder / "image"
    for name in ("bin", "tmp", "usr", "lib", "lib64", "root", "etc"):
        (image / name).mkdir(parents=True)
    (image / "tmp").chmod(0o1777)
    shutil.copy("/bin/busybox", image / "bin" / "busybox")
    for command in COMMANDS:
        (image / "bin" / command).symlink_to("busybox")
    (image / "Dockerfile").write_text("FROM scratch\nADD . /\nENV PATH=/usr/bin:/bin\n")
    return image


def daemons(lab: Lab, folder: Path, *, survives: bool = False) -> Iterator[dict[str, Daemon]]:
    """Start one on each host, with the image; end them afterwards."""
    image = make_image(folder)
    started = {host.name: Daemon(host, image, survives=survives) for host in lab.hosts.values()}
    try:
        for daemon in started.values():
            daemon.revive()
        yield started
    finally:
        for daemon in started.values():
            daemon.close()
