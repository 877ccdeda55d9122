"""The kinds of events: what is done to processes, and what the rules say must follow."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass

from tests.lab.chaos.judge import ON, Expect, Fate, over
from tests.lab.chaos.runs import DISCONNECT_S, LOST_S
from tests.lab.chaos.scene import CONT, KILL, STOP, TERM, Scene

DEAF_S = 45.0
"""The ladder gives a supervisor that hears nothing 13 s beyond its grace."""


@dataclass(frozen=True)
class Kind:
    """A kind of event.

    Attributes:
        name: What it is called in reports.
        weight: How often it is drawn.
        act: Does it.
        fresh: Whether it begins with a launch of its own.
        launcher: Whether it needs the controller that launched the victim.
    """

    name: str
    weight: int
    act: Callable[[Scene], Expect]
    fresh: bool = False
    launcher: bool = False


KINDS: list[Kind] = []


def kind(
    name: str, weight: int, *, fresh: bool = False, launcher: bool = False
) -> Callable[[Callable[[Scene], Expect]], Callable[[Scene], Expect]]:
    """Enter a function into the table."""

    def enter(act: Callable[[Scene], Expect]) -> Callable[[Scene], Expect]:
        KINDS.append(Kind(name, weight, act, fresh, launcher))
        return act

    return enter


# Links


@kind("link killed", 12)
def _link(scene: Scene) -> Expect:
    signum = scene.rng.choice([KILL, KILL, TERM])
    for node in scene.nodes():
        scene.signal(node, signum, scene.victim.links(node), "its link")
    return ON


@kind("link stopped for a while", 2)
def _link_stopped(scene: Scene) -> Expect:
    node = scene.node()
    scene.pause(node, scene.victim.links(node), "its link", LOST_S + 1)
    return ON


# The controller


@kind("controller killed", 3)
def _controller(scene: Scene) -> Expect:
    scene.controller(KILL)
    return over(within_s=DISCONNECT_S + 20)


@kind("controller killed, attach", 4)
def _attach(scene: Scene) -> Expect:
    run = scene.victim
    scene.controller(KILL)
    scene.note("attach")
    run.controllers.append(run.controller)
    run.controller = scene.launcher.start("attach", "--run", run.name, "--cluster", "lab")
    run.followed = run.attached = True
    return ON


@kind("controller killed, stop", 3)
def _stop_after(scene: Scene) -> Expect:
    scene.controller(KILL)
    return _stopped(scene)


@kind("stop from elsewhere", 3)
def _stop_beside(scene: Scene) -> Expect:
    _stopped(scene)
    return over(130)


def _stopped(scene: Scene) -> Expect:
    done = scene.verb("stop")
    if done.code != 0:
        raise AssertionError(f"stop ended with {done!r}")
    return over()


@kind("Ctrl-C", 4, launcher=True)
def _interrupted(scene: Scene) -> Expect:
    signum = scene.rng.choice([signal.SIGINT, TERM])
    scene.controller(signum)
    return over(128 + signum)


@kind("Ctrl-C twice", 2, launcher=True)
def _hurried(scene: Scene) -> Expect:
    scene.controller(signal.SIGINT)
    scene.wait(0.02, 0.4)
    scene.controller(signal.SIGINT)
    return over(130)


@kind("terminal closed", 1, launcher=True)
def _hung_up(scene: Scene) -> Expect:
    scene.controller(signal.SIGHUP)
    return over(129, within_s=DISCONNECT_S + 20)


@kind("controller stopped for a while", 2)
def _controller_pauses(scene: Scene) -> Expect:
    scene.controller(STOP)
    scene.wait(0.5, DISCONNECT_S - 3)
    scene.controller(CONT)
    return ON


@kind("controller stopped for long", 1)
def _controller_sleeps(scene: Scene) -> Expect:
    scene.controller(STOP)
    scene.wait(DISCONNECT_S + 3)
    scene.controller(CONT)
    return over(1)


# Supervisor and guardian


@kind("supervisor killed", 8)
def _supervisor(scene: Scene) -> Expect:
    node = scene.node()
    signum = scene.rng.choice([KILL, KILL, TERM])
    scene.signal(node, signum, [scene.victim.supervisor(node)], "the supervisor")
    return over(1)


@kind("supervisor stopped for a while", 3)
def _supervisor_pauses(scene: Scene) -> Expect:
    node = scene.node()
    scene.pause(node, [scene.victim.supervisor(node)], "the supervisor", LOST_S / 3)
    return ON


@kind("supervisor stopped", 1)
def _supervisor_deaf(scene: Scene) -> Expect:
    node = scene.node()
    scene.signal(node, STOP, [scene.victim.supervisor(node)], "the supervisor")
    return over(1, 4, within_s=DEAF_S)


@kind("supervisor stopped, Ctrl-C", 1, launcher=True)
def _supervisor_deaf_to_us(scene: Scene) -> Expect:
    node = scene.node()
    scene.signal(node, STOP, [scene.victim.supervisor(node)], "the supervisor")
    scene.controller(signal.SIGINT)
    return over(130, within_s=DEAF_S)


@kind("guardian killed", 5)
def _guardian(scene: Scene) -> Expect:
    node = scene.node()
    scene.signal(node, KILL, [scene.victim.guardian(node)], "the guardian")
    return over(1)


@kind("guardian asked to end", 2)
def _guardian_asked(scene: Scene) -> Expect:
    node = scene.node()
    scene.signal(node, TERM, [scene.victim.guardian(node)], "the guardian")
    return ON


@kind("guardian stopped for a while", 2)
def _guardian_pauses(scene: Scene) -> Expect:
    node = scene.node()
    scene.pause(node, [scene.victim.guardian(node)], "the guardian", 1)
    return ON


@kind("supervisor and guardian killed", 6)
def _both(scene: Scene) -> Expect:
    node = scene.node()
    run = scene.victim
    scene.signal(node, KILL, [run.supervisor(node), run.guardian(node)], "both keepers")
    return over(1)


@kind("controller and both keepers killed, stop", 3)
def _nobody_left(scene: Scene) -> Expect:
    node = scene.node()
    run = scene.victim
    both = [run.supervisor(node), run.guardian(node)]
    scene.controller(KILL)
    scene.signal(node, KILL, [*run.links(node), *both], "links and both keepers")
    scene.wait(0, 2)
    return _stopped(scene)


@kind("all of ours on a host killed", 3)
def _all_of_ours(scene: Scene) -> Expect:
    node = scene.node()
    pids = [each.pid for each in scene.victim.ours(node)]
    scene.signal(node, KILL, [*pids, scene.victim.torchrun(node)], "all of ours and torchrun")
    return over(1, 4)


@kind("link and supervisor killed", 3)
def _link_and_supervisor(scene: Scene) -> Expect:
    node = scene.node()
    run = scene.victim
    scene.signal(node, KILL, [*run.links(node), run.supervisor(node)], "link and supervisor")
    return over(1)


# The program


@kind("torchrun killed", 8)
def _torchrun(scene: Scene) -> Expect:
    node = scene.node()
    signum = scene.rng.choice([KILL, KILL, TERM])
    scene.signal(node, signum, [scene.victim.torchrun(node)], "torchrun")
    return over(1)


@kind("torchrun stopped for a while", 2)
def _torchrun_pauses(scene: Scene) -> Expect:
    node = scene.node()
    scene.pause(node, [scene.victim.torchrun(node)], "torchrun", 1)
    return ON


@kind("torchrun stopped, Ctrl-C", 2, launcher=True)
def _torchrun_deaf(scene: Scene) -> Expect:
    node = scene.node()
    scene.signal(node, STOP, [scene.victim.torchrun(node)], "torchrun")
    scene.controller(signal.SIGINT)
    return over(130)


@kind("rank killed", 10)
def _rank(scene: Scene) -> Expect:
    node = scene.node()
    run, rank = scene.victim, scene.a_rank(node)
    signum = scene.rng.choice([KILL, KILL, signal.SIGSEGV])
    scene.signal(node, signum, [run.pids[rank]], f"rank {rank}")
    how = f"rank {rank} on {node} was killed by {signum.name}"
    return over(1, says=f"first failure: {how}")


@kind("ranks killed on two hosts", 3)
def _ranks(scene: Scene) -> Expect:
    for node in scene.rng.sample(list(scene.lab.hosts), 2):
        rank = scene.a_rank(node)
        scene.signal(node, KILL, [scene.victim.pids[rank]], f"rank {rank}")
    return over(1)


@kind("rank's shim killed", 4)
def _shim(scene: Scene) -> Expect:
    node = scene.node()
    rank = scene.a_rank(node)
    scene.signal(node, KILL, [scene.victim.shim(node, rank)], f"the shim of rank {rank}")
    return over(1)


@kind("rank stopped for a while", 2)
def _rank_pauses(scene: Scene) -> Expect:
    node = scene.node()
    rank = scene.a_rank(node)
    scene.pause(node, [scene.victim.pids[rank]], f"rank {rank}", 1)
    return ON


@kind("rank stopped, Ctrl-C", 2, launcher=True)
def _rank_deaf(scene: Scene) -> Expect:
    node = scene.node()
    rank = scene.a_rank(node)
    scene.signal(node, STOP, [scene.victim.pids[rank]], f"rank {rank}")
    scene.controller(signal.SIGINT)
    return over(130)


@kind("grandchild killed or stopped", 5)
def _grandchild(scene: Scene) -> Expect:
    node = scene.node()
    pids = scene.victim.company(node)
    signum = scene.rng.choice([KILL, KILL, STOP])
    if pids:
        scene.signal(node, signum, [scene.rng.choice(pids)], "a grandchild")
    return ON


@kind("rank killed, Ctrl-C", 2, launcher=True)
def _rank_and_user(scene: Scene) -> Expect:
    node = scene.node()
    rank = scene.a_rank(node)
    scene.signal(node, KILL, [scene.victim.pids[rank]], f"rank {rank}")
    scene.controller(signal.SIGINT)
    return over(1, 130)


@kind("controller killed, rank killed", 4)
def _rank_alone(scene: Scene) -> Expect:
    node = scene.node()
    rank = scene.a_rank(node)
    scene.controller(KILL)
    scene.signal(node, KILL, [scene.victim.pids[rank]], f"rank {rank}")
    return over()


@kind("supervisor killed here, rank there", 3)
def _here_and_there(scene: Scene) -> Expect:
    here, there = scene.rng.sample(list(scene.lab.hosts), 2)
    rank = scene.a_rank(there)
    scene.signal(here, KILL, [scene.victim.supervisor(here)], "the supervisor")
    scene.signal(there, KILL, [scene.victim.pids[rank]], f"rank {rank}")
    return over(1)


# Its beginning and its end


@kind("the end", 4)
def _succeeds(scene: Scene) -> Expect:
    scene.victim.tell_to_end()
    return over(0)


@kind("the end, link killed", 3)
def _link_at_end(scene: Scene) -> Expect:
    pids = {node: scene.victim.links(node) for node in scene.nodes()}
    scene.victim.tell_to_end()
    for node, links in pids.items():
        scene.signal(node, KILL, links, "its link")
    return over(0)


@kind("the end, controller killed, attach", 3)
def _attach_at_end(scene: Scene) -> Expect:
    scene.victim.tell_to_end()
    _attach(scene)
    return over(0)


@kind("controller ended at the start", 8, fresh=True)
def _start(scene: Scene) -> Expect:
    scene.victim = scene.relaunch()
    scene.wait(0.1, 3)
    signum = scene.rng.choice([KILL, KILL, signal.SIGINT, TERM])
    scene.controller(signum)
    early = -signum  # before it had a say in it
    return over() if signum == KILL else over(128 + signum, early)


@kind("ours killed at the start", 5, fresh=True)
def _start_on_hosts(scene: Scene) -> Expect:
    run = scene.victim = scene.relaunch()
    scene.wait(0.5, 3)
    node = scene.node()
    pids = [each.pid for each in run.ours(node)]
    if pids:
        scene.signal(node, KILL, [scene.rng.choice(pids)], "one of ours")
    return Expect(Fate.EITHER)
