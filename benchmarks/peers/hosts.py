"""Lab hosts of the comparison: one that launchers are started on, the others for ranks."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.lab.lab import Lab, make_lab
from tests.lab.waiting import wait_until

HEAD = "head"
"""The name of the host that launchers are started on."""

PROGRAMS = Path(__file__).parent / "programs"
TIMEOUT_S = 300


class LauncherError(RuntimeError):
    """A launcher that did not do what a scene begins with."""


@dataclass
class Launched:
    """A launcher that was started, and what it has printed.

    Attributes:
        process: It.
        began: When it was started, by the monotonic clock.
        chunks: What was read from it, each with the moment.
    """

    process: subprocess.Popen[str]
    began: float
    chunks: list[tuple[float, bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def wait(self) -> float:
        """Wait for its end, which has to be a good one; return the moment."""
        try:
            code = self.process.wait(TIMEOUT_S)
        except subprocess.TimeoutExpired as error:
            raise LauncherError(f"not ended after {TIMEOUT_S} s") from error
        ended = time.monotonic()
        self._reader.join(TIMEOUT_S)
        if code:
            raise LauncherError(f"exit code {code}\n{self.text[-1000:]}")
        return ended

    def _read(self) -> None:
        """Read until nobody can write any more."""
        assert self.process.stdout is not None
        while chunk := os.read(self.process.stdout.fileno(), 1 << 16):
            self.chunks.append((time.monotonic(), chunk))

    @property
    def text(self) -> str:
        """All that it has printed so far."""
        return b"".join(chunk for _, chunk in self.chunks).decode(errors="replace")

    def first_after(self, moment: float) -> tuple[float, str] | None:
        """Return when it first printed something after that moment, and the line."""
        for when, chunk in list(self.chunks):
            if when > moment and chunk.strip():
                return when, chunk.decode(errors="replace").strip().splitlines()[0]
        return None

    def moment_of(self, word: bytes, times: int) -> float | None:
        """Return when it had printed a word so often."""
        seen = 0
        for when, chunk in list(self.chunks):
            seen += chunk.count(word)
            if seen >= times:
                return when
        return None

    def interrupt(self) -> None:
        """Send SIGINT to its process group, as a terminal does for the one in the foreground."""
        wrapper = self.process.pid  # nsenter: it leads the group, and is none of the launcher's
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                group = (entry / "stat").read_text().rpartition(")")[2].split()[2]
                if int(group) == wrapper != int(entry.name):
                    os.kill(int(entry.name), signal.SIGINT)


@dataclass(frozen=True)
class Cluster:
    """Hosts with one account, alice, who can log in from the head to each node by its name.

    Attributes:
        lab: The hosts.
        nodes: The names of those for ranks.
        folder: What all hosts see, at the same path.
    """

    lab: Lab
    nodes: tuple[str, ...]
    folder: Path

    @property
    def project(self) -> Path:
        """The working directory of all launchers."""
        return self.folder / "project"

    @property
    def marks(self) -> Path:
        """Where ranks note that they run."""
        return self.folder / "marks"

    @property
    def conf(self) -> Path:
        """The runner's configuration."""
        return self.folder / "conf"

    @property
    def world_size(self) -> int:
        """The number of ranks."""
        return len(self.nodes)

    @property
    def master(self) -> str:
        """The address of the first node."""
        return self.lab[self.nodes[0]].address

    def start(self, argv: Sequence[str]) -> Launched:
        """Start a launcher on the head, with its output in a pipe."""
        shell = ["/bin/sh", "-c", 'cd "$1" && shift && exec "$@"', "sh", str(self.project)]
        began = time.monotonic()
        process = self.lab[HEAD].popen(
            [*shell, *argv], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        return Launched(process, began)

    def left(self, names: Sequence[str]) -> int:
        """Return how many processes run on these nodes, besides sshd's own."""
        return sum(len(self.lab[name].leftovers()) for name in names)

    def ranks(self, names: Sequence[str]) -> int:
        """Return of how many ranks of these nodes something runs: they, or a child of theirs."""
        return sum(is_locked(self.marks / f"up.{self.nodes.index(name)}") for name in names)

    def clear(self) -> None:
        """Kill all that runs, plug every cable in, and remove what runs have written."""
        self.lab.repair()
        self.lab.kill_all()
        for name in self.nodes:
            self.lab[name].sh("rm -rf ~/.runner/runs")
        shutil.rmtree(self.project / "runs", ignore_errors=True)
        for mark in self.marks.iterdir():
            mark.unlink()

    def wait_up(self, launched: Launched) -> None:
        """Wait until every rank has noted that it runs."""

        def up() -> bool:
            if launched.process.poll() is not None:
                raise LauncherError(f"it ended before its ranks ran\n{launched.text[-1000:]}")
            return len(list(self.marks.glob("up.*"))) == self.world_size

        wait_until(up, "every rank", TIMEOUT_S, detail=lambda: launched.text[-1000:])


def is_locked(path: Path) -> bool:
    """Tell whether a process, on whichever of our hosts, holds a lock of a file."""
    with path.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


@contextlib.contextmanager
def make_cluster(count: int, environments: Path) -> Iterator[Cluster]:
    """Make hosts that see the environments of the launchers, too."""
    nodes = tuple(f"node{i + 1}" for i in range(count))
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        with make_lab(names=[HEAD, *nodes], keep=[folder, environments]) as lab:
            cluster = Cluster(lab, nodes, folder)
            for path in (cluster.project, cluster.marks):
                path.mkdir()
                path.chmod(0o1777)
            for program in PROGRAMS.glob("[!_]*.py"):
                shutil.copy(program, cluster.project)
            ssh = {"key": "~/.ssh/id_ed25519", "known_hosts": "~/.ssh/known_hosts"}
            lab.write_cluster(cluster.conf, names=nodes, ssh=ssh, python=sys.executable)
            head = lab[HEAD]
            head.sh("mkdir -m 700 ~/.ssh")
            head.write("~/.ssh/id_ed25519", lab.key.read_text(), 0o600)
            head.write("~/.ssh/known_hosts", lab.known_hosts.read_text())
            yield cluster
