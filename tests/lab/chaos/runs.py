"""One run under test: its controller, its processes on the hosts, its files on both sides."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.lab.lab import Host, Lab, LabError, Process
from tests.lab.launching import PROGRAMS, TORCHLESS, Controller, Launcher
from tests.lab.waiting import TimedOut, wait_until

CHATTER_SCRIPT = str(PROGRAMS / "chatter.py")
LOST_S = 15.0  # the default
DISCONNECT_S = 20.0
LIMITS = (f"disconnect_s={DISCONNECT_S}", "grace_s=0.5")
PAUSE_S = 0.05
START_S = 60.0
LINE_PADDING = "x" * 150
"""What every line of a rank ends with: a full disk is met soon, a torn line is told."""

USER = "root"


@dataclass(frozen=True)
class RunShape:
    per_node: int = 1
    ignores_term: bool = False
    uses_torchrun: bool = False
    detached: bool = False


@dataclass
class Run:
    """A run on all hosts of the lab."""

    name: str
    shape: RunShape
    lab: Lab
    controller: Controller  # which launched it, or follows it now
    is_followed: bool = True  # a controller is to see its end
    is_attached: bool = False  # that one joined it: its Ctrl-C leaves the run alone
    pids: dict[int, int] = field(default_factory=dict)  # of the ranks' own processes
    powerless: set[str] = field(default_factory=set)  # nodes that were off while it was on
    disk_was_full: set[str] = field(default_factory=set)
    may_miss_bytes: set[str] = field(default_factory=set)  # nodes that sent perhaps not all
    controllers: list[Controller] = field(default_factory=list)  # before the one of now

    def folder(self, node: str) -> Path:
        """Its folder on a host, as this process sees it."""
        return _home(self.lab[node]) / ".runner" / "runs" / self.name / node

    @property
    def controller_folder(self) -> Path:
        return self.controller.cwd / "runs" / self.name

    def ranks(self) -> Iterator[tuple[str, int]]:
        for number, node in enumerate(self.lab.hosts):
            for local in range(self.shape.per_node):
                yield node, number * self.shape.per_node + local

    def log(self, node: str, rank: int, stream: str) -> bytes:
        return _bytes(self.folder(node) / "attempt_0" / f"rank_{rank}.{stream}")

    def local_log(self, node: str, rank: int, stream: str) -> bytes:
        return _bytes(self.controller_folder / "logs" / node / f"rank_{rank}.{stream}")

    def events(self, node: str) -> list[dict[str, Any]]:
        found = []
        for line in _bytes(self.folder(node) / "events.jsonl").splitlines():
            with contextlib.suppress(ValueError):
                found.append(json.loads(line))
        return found

    def last_events(self) -> list[dict[str, Any]]:
        return [events[-1] for events in map(self.events, self.lab.hosts) if events]

    def last_kind(self, node: str) -> str:
        return str((self.events(node) or [{"kind": ""}])[-1]["kind"])

    def kinds(self, node: str) -> list[str]:
        return [str(event["kind"]) for event in self.events(node)]

    def shim(self, node: str, rank: int) -> int:
        return int(self._start(node, rank)["shim"])

    def torchrun(self, node: str) -> int:
        found = [e for e in self.events(node) if e["kind"] == "program_started"]
        return int(found[0]["pid"])

    def supervisor(self, node: str) -> int:
        owner = json.loads(_bytes(self.folder(node) / "owner.json"))
        _guardian, supervisor = owner["start_ticks"]
        return int(supervisor)

    def guardian(self, node: str) -> int:
        own = self.supervisor(node)
        (parent,) = (p.ppid for p in self.lab[node].processes() if p.pid == own)
        return parent

    def agent_pids(self, node: str) -> list[int]:
        others = {self.supervisor(node), self.guardian(node)}
        return [each.pid for each in self.our_processes(node) if each.pid not in others]

    def our_processes(self, node: str) -> list[Process]:
        """Our own processes on a node: agents, guardian, supervisor."""
        names = [self.name, "attach"] if self.is_attached else [self.name]
        words = [f"runner {name} {node} v" for name in names]
        processes = self.lab[node].processes()
        return [p for p in processes if any(each in p.cmdline for each in words)]

    def rank_children(self, node: str) -> list[int]:
        """The children of the ranks of a node, wherever they went."""
        own = {self.shim(node, rank) for at, rank in self.ranks() if at == node}
        own |= {self.pids[rank] for at, rank in self.ranks() if at == node}
        own |= {self.torchrun(node)}
        found = descendants(self.lab[node].processes(), {self.supervisor(node)})
        return sorted(found - own - {self.supervisor(node)})

    def wait_started(self) -> None:
        """Return once every rank has written, and every supervisor knows the others."""
        members = list(self.lab.hosts)[1:]

        def up() -> bool:
            if self.controller.process.poll() not in (None, 0):
                raise LabError("it ended at its start")
            return self._joined(members) and all(
                self.log(node, rank, "out") for node, rank in self.ranks()
            )

        try:
            wait_until(up, "every rank to write", START_S)
            if self.shape.detached:
                wait_until(lambda: self.controller.process.poll() == 0, "it to detach", START_S)
                self.is_followed = False
        except (LabError, TimedOut) as error:
            raise LabError(f"{self.name}: {error}\n{self.controller_messages}") from None
        if self.shape.detached:
            self.may_miss_bytes.update(self.lab.hosts)
        self.pids = {rank: int(self._start(node, rank)["pid"]) for node, rank in self.ranks()}

    @property
    def controller_messages(self) -> str:
        own = (line for line in self.controller.err.splitlines() if not line.startswith("["))
        return "\n".join(own)[-4000:]

    def _joined(self, members: list[str]) -> bool:
        """Whether the supervisors know each other, and a controller that stays knows that."""
        known = _bytes(self.controller_folder / "events.jsonl").count(b'"kind":"hub_joined"')
        there = all("hub_joined" in self.kinds(node) for node in members)
        return there and (self.shape.detached or known == len(members))

    def request_end(self) -> None:
        for host in self.lab.hosts.values():
            (_home(host) / f"stop-{self.name}").touch()

    def _start(self, node: str, rank: int) -> dict[str, Any]:
        path = self.folder(node) / "attempt_0" / f"rank_{rank}.start"
        data: dict[str, Any] = json.loads(path.read_text())
        return data

    def log_sizes(self) -> dict[int, int]:
        return {rank: len(self.log(node, rank, "out")) for node, rank in self.ranks()}

    def close(self) -> None:
        for each in (self.controller, *self.controllers):
            each.close()
        for host in self.lab.hosts.values():
            (_home(host) / f"stop-{self.name}").unlink(missing_ok=True)


def _home(host: Host) -> Path:
    return host.home.with_name(USER)


def launch(lab: Lab, launcher: Launcher, name: str, shape: RunShape) -> Run:
    words = [name, str(PAUSE_S), *(["deaf"] if shape.ignores_term else [])]
    quoted = ",".join(json.dumps(word) for word in words)
    overrides = [
        "cluster=lab",
        f"run_id={name}",
        f"cluster.nproc_per_node={shape.per_node}",
        f"task.script={CHATTER_SCRIPT}",
        f"task.args_after=[{quoted}]",
        *LIMITS,
    ]
    if not shape.uses_torchrun:
        overrides.append(f"cluster.env.PYTHONPATH={TORCHLESS}")
    if shape.detached:
        overrides.append("detach=true")
    return Run(name, shape, lab, launcher.start(*overrides))


def descendants(processes: list[Process], roots: set[int]) -> set[int]:
    family = set(roots)
    while True:
        more = {each.pid for each in processes if each.ppid in family} - family
        if not more:
            return family
        family |= more


def foreign_processes(host: Host, others: list[Run]) -> list[Process]:
    """Return all that runs on a host and is neither sshd's nor of one of those runs."""
    everybody = host.processes()
    own = {each.pid for run in others for each in host.processes(run.name)}
    own |= {each.pid for run in others for each in run.our_processes(host.name)}
    family = descendants(everybody, own)
    return [
        each
        for each in everybody
        if each.pid != 1 and each.pid not in family and not each.cmdline.startswith("sshd")
    ]


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""
