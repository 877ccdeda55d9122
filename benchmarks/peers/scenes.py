"""Scenes of the comparison: what is done to a launch, and what is measured of it."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers.hosts import HEAD, Cluster, Launched, LauncherError
from benchmarks.peers.launchers import Launcher
from benchmarks.peers.results import Values
from benchmarks.timing import here, there
from tests.lab.waiting import TimedOut, wait_until

PAUSE_S = 0.05
SETTLE_S = 2.0
"""How long ranks have run when something happens to them."""

WHOLE = re.compile(rb"[^x\n]{0,40}\b(\d+) (\d{8}) x{88}\r?")


@dataclass(frozen=True)
class Limits:
    """How long a scene is watched, in seconds."""

    failure: float = 20.0
    interrupt: float = 45.0  # torch's own ladder, which some wait for, takes 30 s
    kill: float = 45.0
    unplug: float = 85.0  # torchrunx notices after its own 60 s


@dataclass(frozen=True)
class Stage:
    """What a scene is played with.

    Attributes:
        cluster: The hosts.
        launcher: The launcher.
        programs: Where the programs of its environment are.
        limits: How long to watch.
        lines: How many lines a rank prints in the scene of lines.
    """

    cluster: Cluster
    launcher: Launcher
    programs: Path
    limits: Limits
    lines: int

    def start(self, scene: str) -> Launched:
        """Launch the ranks of a scene."""
        assert self.launcher.launch is not None
        words = [scene, str(self.cluster.marks), str(self.cluster.world_size), str(self.lines)]
        return self.cluster.start(self.launcher.launch(self.cluster, self.programs, words))

    @contextlib.contextmanager
    def running(self, scene: str) -> Iterator[Launched]:
        """Launch the ranks of a scene, and wait until they have run for a while."""
        launched = self.start(scene)
        self.cluster.wait_up(launched)
        time.sleep(SETTLE_S)
        yield launched


def launch(stage: Stage) -> Values:
    """The seconds from the command to the last rank's first line, and the CPU seconds of it all."""
    launched, _, cpu = to_its_end(stage.cluster, lambda: stage.start("first line"))
    moment = launched.moment_of(b"here", stage.cluster.world_size)
    if moment is None:
        raise LauncherError(f"not every rank was heard\n{launched.text[-1000:]}")
    return {"first": moment - launched.began, "cpu": cpu}


def lines(stage: Stage) -> Values:
    """The seconds until all ranks have printed all lines, the CPU seconds, and the whole lines."""
    launched, seconds, cpu = to_its_end(stage.cluster, lambda: stage.start("lines"))
    output = b"".join(chunk for _, chunk in launched.chunks)
    whole = {match.groups() for line in output.split(b"\n") if (match := WHOLE.fullmatch(line))}
    printed = stage.lines * stage.cluster.world_size
    return {"seconds": seconds, "cpu": cpu, "whole": len(whole), "lines": printed}


def many(stage: Stage) -> Values:
    """The seconds of `true` on every node, to the end of the command, and its CPU seconds."""
    execute = stage.launcher.execute
    assert execute is not None
    command = execute(stage.cluster, stage.programs)
    _, seconds, cpu = to_its_end(stage.cluster, lambda: stage.cluster.start(command))
    return {"seconds": seconds, "cpu": cpu}


def failure(stage: Stage) -> Values:
    """The last rank fails, the others sleep."""
    with stage.running("failure") as launched:
        began = time.monotonic()
        (stage.cluster.marks / "fail").touch()
        return watch(stage.cluster, launched, began, stage.limits.failure)


def interrupt(stage: Stage) -> Values:
    """Ctrl-C, once or twice, for ranks that ignore signals and have a child in its own session."""
    with stage.running("stubborn") as launched:
        began = time.monotonic()
        launched.interrupt()
        for _ in range(stage.launcher.interrupts - 1):
            time.sleep(0.3)
            launched.interrupt()
        return watch(stage.cluster, launched, began, stage.limits.interrupt)


def kill(stage: Stage) -> Values:
    """SIGKILL for the launcher, with the same ranks."""
    with stage.running("stubborn") as launched:
        began = time.monotonic()
        launched.process.kill()
        return watch(stage.cluster, launched, began, stage.limits.kill)


def unplug(stage: Stage) -> Values:
    """The last node loses its network while ranks sleep."""
    lost = stage.cluster.nodes[-1]
    with stage.running("sleep") as launched:
        began = time.monotonic()
        stage.cluster.lab[lost].unplug()
        values = watch(stage.cluster, launched, began, stage.limits.unplug, lost)
    said = launched.first_after(began)
    heard = {"said": said[0] - began, "text": said[1][:200]} if said else {"said": None, "text": ""}
    return heard | values


def watch(
    cluster: Cluster, launched: Launched, began: float, limit_s: float, lost: str = ""
) -> Values:
    """Return when the launcher, the ranks and all processes on the nodes ended, or what is left.

    A lost node is told apart: its values end in "_there".
    """
    groups = {"": [name for name in cluster.nodes if name != lost]}
    if lost:
        groups["_there"] = [lost]
    counts = {"ranks": cluster.ranks, "processes": cluster.left}
    values: Values = {"ended": None}
    values |= {f"{what}_gone{end}": None for end in groups for what in counts}
    while True:
        now = time.monotonic() - began
        if values["ended"] is None and launched.process.poll() is not None:
            values["ended"] = now
        for end, names in groups.items():
            for what, count in counts.items():
                values[f"{what}{end}"] = left = count(names)
                moment = f"{what}_gone{end}"
                values[moment] = None if left else (values[moment] or now)
        if now > limit_s or None not in values.values():
            return values | {"exit": launched.process.poll()}
        time.sleep(PAUSE_S)


def to_its_end(cluster: Cluster, start: Callable[[], Launched]) -> tuple[Launched, float, float]:
    """Start a launcher and wait for its end; return its seconds, and the CPU seconds of the head.

    Those are of the processes that the command started, and of what fell to the host's PID 1.
    """
    before, used = there(cluster.lab, [HEAD]), here()
    launched = start()
    ended = launched.wait()
    used = here() - used
    with contextlib.suppress(TimedOut):
        wait_until(lambda: not cluster.left(cluster.nodes), "the hosts to be idle", 10)
    return launched, ended - launched.began, used + there(cluster.lab, [HEAD]) - before


SCENES: dict[str, Callable[[Stage], Values]] = {
    "launch": launch,
    "failure": failure,
    "interrupt": interrupt,
    "kill": kill,
    "unplug": unplug,
    "lines": lines,
    "many": many,
}
"""All, in the order in which they are played; `many` has more hosts."""
