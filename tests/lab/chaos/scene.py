"""Scene of an event: a victim, a bystander, the hosts, and chance; and how signals hit them."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from tests.lab.chaos.judge import GOES_ON, Expectation, ends
from tests.lab.chaos.runs import Run
from tests.lab.lab import Lab
from tests.lab.launching import Launcher, Result
from tests.lab.waiting import PATIENCE

KILL = signal.SIGKILL
TERM = signal.SIGTERM
INT = signal.SIGINT
STOP = signal.SIGSTOP
CONT = signal.SIGCONT


@dataclass
class Scene:
    """One event: who is hit, and what becomes of the bystander."""

    lab: Lab
    launcher: Launcher
    rng: random.Random
    victim: Run
    bystander: Run
    bystander_expectation: Expectation = GOES_ON
    actions: list[str] = field(default_factory=list)  # what was done, in words
    relaunch: Callable[[], Run] = lambda: NotImplemented  # another victim, not waited for

    def note(self, text: str) -> None:
        self.actions.append(text)

    def random_node(self) -> str:
        return self.rng.choice(list(self.lab.hosts))

    def random_nodes(self) -> list[str]:
        names = list(self.lab.hosts)
        return sorted(self.rng.sample(names, self.rng.randint(1, len(names))))

    def signal(self, node: str, signum: int, pids: Iterable[int], what: str) -> None:
        pids = list(pids)
        self.note(f"{signal.Signals(signum).name} to {what} on {node}")
        if pids:
            words = " ".join(map(str, pids))
            self.lab[node].sh(f"kill -{int(signum)} {words}", user="root", check=False)

    def sleep(self, least: float, most: float = 0.0) -> None:
        seconds = self.rng.uniform(least, max(least, most))
        self.note(f"{seconds:.1f} s")
        time.sleep(seconds)

    def signal_controller(self, signum: int) -> None:
        self.note(f"{signal.Signals(signum).name} to the controller")
        self.victim.controller.send(signum)
        if signum in (KILL, signal.SIGHUP):
            self.victim.is_followed = False
            self.victim.controller.process.wait(20 * PATIENCE)

    def run_stop(self) -> Result:
        self.note("stop")
        controller = self.launcher.start("stop", "--run", self.victim.name, "--cluster", "lab")
        try:
            return controller.wait(60)
        finally:
            controller.close()

    def end_unmarked(self, node: str) -> None:
        """End what nobody finds when both its parents, guardian and supervisor, are dead."""
        marked = {each.pid for each in self.lab[node].processes(self.victim.name)}
        pids = [pid for pid in self.victim.rank_children(node) if pid not in marked]
        self.signal(node, KILL, pids, "children without a mark")

    def random_rank(self, node: str) -> int:
        return self.rng.choice([rank for at, rank in self.victim.ranks() if at == node])


Act = Callable[[Scene], Expectation]
PROCESSES: dict[str, Callable[[Scene, str], list[int]]] = {
    "agent": lambda scene, node: scene.victim.agent_pids(node),
    "supervisor": lambda scene, node: [scene.victim.supervisor(node)],
    "guardian": lambda scene, node: [scene.victim.guardian(node)],
    "torchrun": lambda scene, node: [scene.victim.torchrun(node)],
    "ours": lambda scene, node: [each.pid for each in scene.victim.our_processes(node)],
    "rank": lambda scene, node: [scene.victim.pids[scene.random_rank(node)]],
    "shim": lambda scene, node: [scene.victim.shim(node, scene.random_rank(node))],
}


def hits(
    *processes: str,
    signals: Sequence[signal.Signals] = (KILL,),
    then: Sequence[int] = (),
    expect: Expectation,
) -> Act:
    """Send a signal to processes of a node at once, and then some to the controller."""

    def act(scene: Scene) -> Expectation:
        node = scene.random_node()
        if "ours" in processes or ("guardian" in processes and "supervisor" in processes):
            scene.end_unmarked(node)
        pids = [pid for name in processes for pid in PROCESSES[name](scene, node)]
        scene.signal(node, scene.rng.choice(signals), pids, " and ".join(processes))
        for signum in then:
            scene.signal_controller(signum)
        return expect

    return act


def pauses(process: str, seconds: float) -> Act:
    def act(scene: Scene) -> Expectation:
        node = scene.random_node()
        pids = PROCESSES[process](scene, node)
        scene.signal(node, STOP, pids, process)
        scene.sleep(seconds)
        scene.signal(node, CONT, pids, process)
        return GOES_ON

    return act


def signals_controller(*signals: signal.Signals, within_s: float = 30.0) -> Act:
    """Send one of some signals to the controller, which ends by it."""

    def act(scene: Scene) -> Expectation:
        signum = scene.rng.choice(signals)
        scene.signal_controller(signum)
        codes = [] if signum == KILL else [128 + signum]
        return ends(*codes, within_s=within_s)

    return act


def pauses_controller(least: float, most: float, expect: Expectation) -> Act:
    def act(scene: Scene) -> Expectation:
        scene.signal_controller(STOP)
        scene.sleep(least, most)
        scene.signal_controller(CONT)
        return expect

    return act
