"""Users of container engines on hosts of the lab; and podman, whose files are of one host each."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.lab.engines import IMAGE, Daemon, make_image, overrides
from tests.lab.lab import Lab
from tests.lab.lab.files import LOGIN_USER
from tests.lab.lab.host import Host
from tests.lab.launching import Controller, Launcher, Result
from tests.lab.waiting import wait_until

PODMAN, INIT, NEWUIDMAP = "/usr/bin/podman", "/usr/bin/docker-init", "/usr/bin/newuidmap"
PROGRAMS = (PODMAN, INIT, NEWUIDMAP, "/usr/bin/conmon", "/usr/sbin/runc", "/bin/busybox")
NEEDED = (*PROGRAMS, "/etc/subuid", "/etc/subgid")
SECRET = "s3cret\nand more"

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
exec {PODMAN} --storage-driver vfs "$@"
"""


def missing() -> str:
    """Return what a user's podman needs and this machine lacks, "" for nothing."""
    absent = [path for path in NEEDED if not Path(path).exists()]
    return f"podman needs {', '.join(absent)}" if absent else ""


def write_program(folder: Path) -> str:
    """Write the program that stands for podman on all hosts; return its path."""
    folder.chmod(0o755)
    (folder / "containers.conf").write_text(CONTAINERS_CONF)
    program = folder / "podman"
    program.write_text(WRAPPER)
    program.chmod(0o755)
    return str(program)


def let_users_map(host: Host, folder: Path) -> None:
    """Give the ordinary user a range of users, and let them mount a new /proc.

    The kernel allows that only where nothing of the host's is hidden by a mount.
    """
    ranges = f"{folder}/subuids-of-{host.name}"
    Path(ranges).write_text(f"{LOGIN_USER}:100000:65536\n")
    mounts = [f"mount --bind {ranges} /etc/{name}" for name in ("subuid", "subgid")]
    hidden = "/proc/sys/kernel/random/boot_id"
    host.sh(f"umount {hidden} && mount --make-rshared / && {' && '.join(mounts)}", user="root")


class Podman:
    """Podman of the ordinary user on a host, with the bare image."""

    def __init__(self, host: Host, program: str, image: Path) -> None:
        self.host = host
        self._program = program
        self._image = image

    def revive(self) -> None:
        """Have the image again, if the home that it was in is a new one."""
        if not self.sh(f"images --quiet {IMAGE}"):
            words = f"import --quiet --change ENV=PATH=/usr/bin:/bin - {IMAGE}"
            self.sh(words, f"tar -C {self._image} -c .")

    def sh(self, words: str, before: str = "true") -> str:
        """Return what it prints, with the output of another command as its input."""
        return self.host.sh(f"{before} | {self._program} {words}", timeout=60)

    def containers(self) -> list[str]:
        return self.sh("ps --all --format '{{.Names}}'").split()


class User:
    """Somebody who launches on two hosts, in containers of an engine."""

    def __init__(
        self,
        launcher: Launcher,
        lab: Lab,
        engine_of: Mapping[str, Daemon | Podman],
        words: list[str],
    ) -> None:
        self.launcher = launcher
        self.engine_of = engine_of
        self.words = words
        lab.write_cluster(launcher.conf)

    def run(self, *words: str) -> Result:
        return self.launcher("cluster=lab", "grace_s=2", *self.words, *words)

    def run_ranks(self, words: str, *more: str) -> Result:
        return self.run(*self.launcher.rank_overrides(*words.split()), *more)

    def begin(self, *ranks: str, more: tuple[str, ...] = ()) -> Controller:
        """Start a rank on each host that does as told and sleeps; wait until both run."""
        words = self.launcher.rank_overrides(*ranks, "print=up", "sleep=600")
        controller = self.launcher.start(
            "cluster=lab", "grace_s=2", *self.words, *words, *more, env={"TOKEN": SECRET}
        )
        controller.until_printed("] up", 2)
        return controller

    def runs_on(self, run_id: str) -> list[str]:
        """The hosts that have a container of a run."""
        return [
            name
            for name, engine in self.engine_of.items()
            if any(run_id in each for each in engine.containers())
        ]

    def left(self) -> dict[str, list[str]]:
        return {name: engine.containers() for name, engine in self.engine_of.items()}


class Podmans:
    """The podman of each host."""

    def __init__(self, lab: Lab, folder: Path) -> None:
        self._lab = lab
        self._program = write_program(folder)
        image = make_image(folder)
        hosts = lab.hosts.values()
        for host in hosts:
            let_users_map(host, folder)
        self._made = {host.name: Podman(host, self._program, image) for host in hosts}

    @contextlib.contextmanager
    def user(self, launcher: Launcher) -> Iterator[User]:
        """Who launches; nothing of theirs is left in the end."""
        for engine in self._made.values():
            engine.revive()
        words = overrides(engine="podman", program=self._program)
        user = User(launcher, self._lab, self._made, words)
        yield user
        left = user.left()
        assert not any(left.values()), left
        for engine in self._made.values():
            engine.sh("system migrate")  # ends the process that keeps the user's namespace
        hosts = self._lab.hosts.values()
        wait_until(
            lambda: not any(host.processes("RUNNER_RUN_ID") for host in hosts),
            "no process to be left",
            5,
        )
