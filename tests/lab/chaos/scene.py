"""Scene of an event: a victim, a bystander, the hosts, and chance."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from tests.lab.chaos.judge import GOES_ON, Expectation
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
    """One event: who is hit, and what becomes of the bystander.

    Attributes:
        rng: Decides everything that is left to chance.
        actions: What was done, in words.
        relaunch: Starts another victim and does not wait for it.
    """

    lab: Lab
    launcher: Launcher
    rng: random.Random
    victim: Run
    bystander: Run
    bystander_expectation: Expectation = GOES_ON
    actions: list[str] = field(default_factory=list)
    relaunch: Callable[[], Run] = lambda: NotImplemented

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

    def random_rank(self, node: str) -> int:
        return self.rng.choice([rank for at, rank in self.victim.ranks() if at == node])
