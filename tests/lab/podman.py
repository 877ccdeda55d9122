"""Podman on hosts of the lab, for root and for an ordinary user; its files are of one host each."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

from tests.lab.engines import IMAGE
from tests.lab.lab.files import LOGIN_USER
from tests.lab.lab.host import Host

PODMAN, INIT, NEWUIDMAP = "/usr/bin/podman", "/usr/bin/docker-init", "/usr/bin/newuidmap"
NEEDED = (PODMAN, INIT, "/usr/bin/conmon", "/usr/sbin/runc", "/bin/busybox")
FOLDER = "/run/podman-of-lab"  # of root, in memory
LEFT_S = 30.0  # a cgroup that is empty for so long is nobody's

CONTAINERS_CONF = f"""\
[containers]
default_ulimits = ["nofile=4096:4096", "nproc=4096:4096"]
init_path = "{INIT}"
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
runtime = "runc"
"""
"""What machines of tests need: limits below podman's own, no systemd, docker's `--init`."""

WRAPPER = f"""\
#!/bin/sh
export CONTAINERS_CONF="${{0%/*}}/containers.conf"
[ $(id -u) != 0 ] ||
    set -- --root {FOLDER}/root --runroot {FOLDER}/runroot --tmpdir {FOLDER}/tmp "$@"
exec {PODMAN} --storage-driver vfs "$@"
"""


def missing(login: str, *, maps: bool) -> str:
    """Return what a user's podman needs and this machine lacks, "" for nothing."""
    needed = list(NEEDED)
    needed += [] if login == "root" else ["/etc/subuid", "/etc/subgid", *([NEWUIDMAP] * maps)]
    absent = [path for path in needed if not Path(path).exists()]
    return f"podman of {login} needs {', '.join(absent)}" if absent else ""


def write_program(folder: Path) -> str:
    """Write the program that stands for podman on all hosts; return its path."""
    folder.chmod(0o755)
    (folder / "containers.conf").write_text(CONTAINERS_CONF)
    program = folder / "podman"
    program.write_text(WRAPPER)
    program.chmod(0o755)
    return str(program)


def let_users_map(host: Host, folder: Path) -> None:
    """Give the ordinary user a range of users, if it can be used, and let them mount a new /proc.

    The kernel allows that only where nothing of the host's is hidden by a mount.
    """
    ranges = f"{folder}/subuids-of-{host.name}"
    Path(ranges).write_text(f"{LOGIN_USER}:100000:65536\n" * Path(NEWUIDMAP).exists())
    mounts = [f"mount --bind {ranges} /etc/{name}" for name in ("subuid", "subgid")]
    hidden = "/proc/sys/kernel/random/boot_id"
    host.sh(f"umount {hidden} && mount --make-rshared / && {' && '.join(mounts)}", user="root")


@contextlib.contextmanager
def users_cannot_map(engine: Podman) -> Iterator[None]:
    """Take the range of users away for a while; podman keeps a namespace until `migrate`."""
    files = "/etc/subuid /etc/subgid"
    ranges = engine.host.sh("cat /etc/subuid")
    engine.sh("system migrate")
    engine.host.sh(f"tee {files}", user="root")
    yield
    engine.host.sh(f"tee {files}", user="root", stdin=ranges)
    engine.sh("system migrate")


class Podman:
    """Podman of a user on a host, with the bare image."""

    def __init__(self, host: Host, login: str, program: str, image: Path) -> None:
        self.host, self.login, self._program, self._image = host, login, program, image
        self.revive()

    def revive(self) -> None:
        """Have the image again, if the home that it was in is a new one."""
        if not self.sh(f"images --quiet {IMAGE}"):
            words = f"import --quiet --change ENV=PATH=/usr/bin:/bin - {IMAGE}"
            self.sh(words, f"tar -C {self._image} -c .")

    def sh(self, words: str, before: str = "true") -> str:
        """Return what it prints, with the output of another command as its input."""
        return self.host.sh(f"{before} | {self._program} {words}", user=self.login, timeout=60)

    def with_env(self, assignment: str) -> Podman:
        """Return the same with a variable of its environment, with the image."""
        return Podman(self.host, self.login, f"env {assignment} {self._program}", self._image)

    def containers(self) -> list[str]:
        return self.sh("ps --all --format '{{.Names}}'").split()


def remove_left_cgroups() -> None:
    """Remove the empty cgroups that podman leaves of containers whose conmon was killed."""
    for path in Path("/sys/fs/cgroup").glob("*/libpod_parent/libpod-*"):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > LEFT_S:
                path.rmdir()
