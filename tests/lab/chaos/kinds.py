"""Events that hit processes, and what must follow from each."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass

from tests.lab.chaos.judge import GOES_ON, Expectation, Fate, ends
from tests.lab.chaos.runs import DISCONNECT_S, LOST_S
from tests.lab.chaos.scene import CONT, KILL, STOP, TERM, Scene

UNRESPONSIVE_S = 45.0
"""The ladder gives a supervisor that hears nothing 13 s beyond its grace."""


@dataclass(frozen=True)
class Kind:
    """A kind of event.

    Attributes:
        name: What it is called in reports.
        weight: How often it is drawn.
        act: Does it.
        needs_fresh_run: Whether it begins with a launch of its own.
        needs_launcher: Whether it needs the controller that launched the victim.
    """

    name: str
    weight: int
    act: Callable[[Scene], Expectation]
    needs_fresh_run: bool = False
    needs_launcher: bool = False


KINDS: list[Kind] = []


def kind(
    name: str, weight: int, *, needs_fresh_run: bool = False, needs_launcher: bool = False
) -> Callable[[Callable[[Scene], Expectation]], Callable[[Scene], Expectation]]:
    """Enter a function into the table."""

    def enter(act: Callable[[Scene], Expectation]) -> Callable[[Scene], Expectation]:
        KINDS.append(Kind(name, weight, act, needs_fresh_run, needs_launcher))
        return act

    return enter


# Links


@kind("agent killed", 12)
def _agent(scene: Scene) -> Expectation:
    signum = scene.rng.choice([KILL, KILL, TERM])
    for node in scene.random_nodes():
        scene.signal(node, signum, scene.victim.agent_pids(node), "its agent")
    return GOES_ON


@kind("agent stopped for a while", 2)
def _agent_stopped(scene: Scene) -> Expectation:
    node = scene.random_node()
    scene.pause(node, scene.victim.agent_pids(node), "its agent", LOST_S + 1)
    return GOES_ON


# The controller


@kind("controller killed", 3)
def _controller(scene: Scene) -> Expectation:
    scene.signal_controller(KILL)
    return ends(within_s=DISCONNECT_S + 20)


@kind("controller killed, attach", 4)
def _attach(scene: Scene) -> Expectation:
    run = scene.victim
    scene.signal_controller(KILL)
    scene.note("attach")
    run.controllers.append(run.controller)
    run.controller = scene.launcher.start("attach", "--run", run.name, "--cluster", "lab")
    run.is_followed = run.is_attached = True
    return GOES_ON


@kind("controller killed, stop", 3)
def _stop_after(scene: Scene) -> Expectation:
    scene.signal_controller(KILL)
    return _stop_victim(scene)


@kind("stop from elsewhere", 3)
def _stop_beside(scene: Scene) -> Expectation:
    _stop_victim(scene)
    return ends(130)


def _stop_victim(scene: Scene) -> Expectation:
    result = scene.run_verb("stop")
    if result.code != 0:
        raise AssertionError(f"stop ended with {result!r}")
    return ends()


@kind("Ctrl-C", 4, needs_launcher=True)
def _interrupted(scene: Scene) -> Expectation:
    signum = scene.rng.choice([signal.SIGINT, TERM])
    scene.signal_controller(signum)
    return ends(128 + signum)


@kind("Ctrl-C twice", 2, needs_launcher=True)
def _hurried(scene: Scene) -> Expectation:
    scene.signal_controller(signal.SIGINT)
    scene.sleep(0.02, 0.4)
    scene.signal_controller(signal.SIGINT)
    return ends(130)


@kind("terminal closed", 1, needs_launcher=True)
def _hung_up(scene: Scene) -> Expectation:
    scene.signal_controller(signal.SIGHUP)
    return ends(129, within_s=DISCONNECT_S + 20)


@kind("controller stopped for a while", 2)
def _controller_pauses(scene: Scene) -> Expectation:
    scene.signal_controller(STOP)
    scene.sleep(0.5, DISCONNECT_S / 2)
    scene.signal_controller(CONT)
    return GOES_ON


@kind("controller stopped for long", 1)
def _controller_sleeps(scene: Scene) -> Expectation:
    scene.signal_controller(STOP)
    scene.sleep(1.5 * DISCONNECT_S)
    scene.signal_controller(CONT)
    return ends(1)


# Supervisor and guardian


@kind("supervisor killed", 8)
def _supervisor(scene: Scene) -> Expectation:
    node = scene.random_node()
    signum = scene.rng.choice([KILL, KILL, TERM])
    scene.signal(node, signum, [scene.victim.supervisor(node)], "the supervisor")
    return ends(1)


@kind("supervisor stopped for a while", 3)
def _supervisor_pauses(scene: Scene) -> Expectation:
    node = scene.random_node()
    scene.pause(node, [scene.victim.supervisor(node)], "the supervisor", LOST_S / 3)
    return GOES_ON


@kind("supervisor stopped", 1)
def _supervisor_deaf(scene: Scene) -> Expectation:
    node = scene.random_node()
    scene.signal(node, STOP, [scene.victim.supervisor(node)], "the supervisor")
    return ends(1, 4, within_s=UNRESPONSIVE_S)


@kind("supervisor stopped, Ctrl-C", 1, needs_launcher=True)
def _supervisor_deaf_to_us(scene: Scene) -> Expectation:
    node = scene.random_node()
    scene.signal(node, STOP, [scene.victim.supervisor(node)], "the supervisor")
    scene.signal_controller(signal.SIGINT)
    return ends(130, within_s=UNRESPONSIVE_S)


@kind("guardian killed", 5)
def _guardian(scene: Scene) -> Expectation:
    node = scene.random_node()
    scene.signal(node, KILL, [scene.victim.guardian(node)], "the guardian")
    return ends(1)


@kind("guardian asked to end", 2)
def _guardian_asked(scene: Scene) -> Expectation:
    node = scene.random_node()
    scene.signal(node, TERM, [scene.victim.guardian(node)], "the guardian")
    return GOES_ON


@kind("guardian stopped for a while", 2)
def _guardian_pauses(scene: Scene) -> Expectation:
    node = scene.random_node()
    scene.pause(node, [scene.victim.guardian(node)], "the guardian", 1)
    return GOES_ON


@kind("supervisor and guardian killed", 6)
def _both(scene: Scene) -> Expectation:
    node = scene.random_node()
    run = scene.victim
    scene.signal(node, KILL, [run.supervisor(node), run.guardian(node)], "guardian and supervisor")
    return ends(1)


@kind("controller and guardian and supervisor killed, stop", 3)
def _nobody_left(scene: Scene) -> Expectation:
    node = scene.random_node()
    run = scene.victim
    both = [run.supervisor(node), run.guardian(node)]
    scene.signal_controller(KILL)
    scene.signal(node, KILL, [*run.agent_pids(node), *both], "agents, guardian and supervisor")
    scene.sleep(0, 2)
    return _stop_victim(scene)


@kind("all of ours on a host killed", 3)
def _all_of_ours(scene: Scene) -> Expectation:
    node = scene.random_node()
    pids = [each.pid for each in scene.victim.our_processes(node)]
    scene.signal(node, KILL, [*pids, scene.victim.torchrun(node)], "all of ours and torchrun")
    return ends(1, 4)


@kind("agent and supervisor killed", 3)
def _agent_and_supervisor(scene: Scene) -> Expectation:
    node = scene.random_node()
    run = scene.victim
    scene.signal(node, KILL, [*run.agent_pids(node), run.supervisor(node)], "agent and supervisor")
    return ends(1)


# The program


@kind("torchrun killed", 8)
def _torchrun(scene: Scene) -> Expectation:
    node = scene.random_node()
    signum = scene.rng.choice([KILL, KILL, TERM])
    scene.signal(node, signum, [scene.victim.torchrun(node)], "torchrun")
    return ends(1)


@kind("torchrun stopped for a while", 2)
def _torchrun_pauses(scene: Scene) -> Expectation:
    node = scene.random_node()
    scene.pause(node, [scene.victim.torchrun(node)], "torchrun", 1)
    return GOES_ON


@kind("torchrun stopped, Ctrl-C", 2, needs_launcher=True)
def _torchrun_deaf(scene: Scene) -> Expectation:
    node = scene.random_node()
    scene.signal(node, STOP, [scene.victim.torchrun(node)], "torchrun")
    scene.signal_controller(signal.SIGINT)
    return ends(130)


@kind("rank killed", 10)
def _rank(scene: Scene) -> Expectation:
    node = scene.random_node()
    run, rank = scene.victim, scene.random_rank(node)
    signum = scene.rng.choice([KILL, KILL, signal.SIGSEGV])
    scene.signal(node, signum, [run.pids[rank]], f"rank {rank}")
    how = f"rank {rank} on {node} was killed by {signum.name}"
    return ends(1, says=f"first failure: {how}")


@kind("ranks killed on two hosts", 3)
def _ranks(scene: Scene) -> Expectation:
    for node in scene.rng.sample(list(scene.lab.hosts), 2):
        rank = scene.random_rank(node)
        scene.signal(node, KILL, [scene.victim.pids[rank]], f"rank {rank}")
    return ends(1)


@kind("rank's shim killed", 4)
def _shim(scene: Scene) -> Expectation:
    node = scene.random_node()
    rank = scene.random_rank(node)
    scene.signal(node, KILL, [scene.victim.shim(node, rank)], f"the shim of rank {rank}")
    return ends(1)


@kind("rank stopped for a while", 2)
def _rank_pauses(scene: Scene) -> Expectation:
    node = scene.random_node()
    rank = scene.random_rank(node)
    scene.pause(node, [scene.victim.pids[rank]], f"rank {rank}", 1)
    return GOES_ON


@kind("rank stopped, Ctrl-C", 2, needs_launcher=True)
def _rank_deaf(scene: Scene) -> Expectation:
    node = scene.random_node()
    rank = scene.random_rank(node)
    scene.signal(node, STOP, [scene.victim.pids[rank]], f"rank {rank}")
    scene.signal_controller(signal.SIGINT)
    return ends(130)


@kind("grandchild killed or stopped", 5)
def _grandchild(scene: Scene) -> Expectation:
    node = scene.random_node()
    pids = scene.victim.rank_children(node)
    signum = scene.rng.choice([KILL, KILL, STOP])
    if pids:
        scene.signal(node, signum, [scene.rng.choice(pids)], "a grandchild")
    return GOES_ON


@kind("rank killed, Ctrl-C", 2, needs_launcher=True)
def _rank_and_user(scene: Scene) -> Expectation:
    node = scene.random_node()
    rank = scene.random_rank(node)
    scene.signal(node, KILL, [scene.victim.pids[rank]], f"rank {rank}")
    scene.signal_controller(signal.SIGINT)
    return ends(1, 130)


@kind("controller killed, rank killed", 4)
def _rank_alone(scene: Scene) -> Expectation:
    node = scene.random_node()
    rank = scene.random_rank(node)
    scene.signal_controller(KILL)
    scene.signal(node, KILL, [scene.victim.pids[rank]], f"rank {rank}")
    return ends()


@kind("supervisor killed here, rank there", 3)
def _here_and_there(scene: Scene) -> Expectation:
    here, there = scene.rng.sample(list(scene.lab.hosts), 2)
    rank = scene.random_rank(there)
    scene.signal(here, KILL, [scene.victim.supervisor(here)], "the supervisor")
    scene.signal(there, KILL, [scene.victim.pids[rank]], f"rank {rank}")
    return ends(1)


# Its beginning and its end


@kind("the end", 4)
def _succeeds(scene: Scene) -> Expectation:
    scene.victim.request_end()
    return ends(0)


@kind("the end, agent killed", 3)
def _agent_at_end(scene: Scene) -> Expectation:
    pids = {node: scene.victim.agent_pids(node) for node in scene.random_nodes()}
    scene.victim.request_end()
    for node, agents in pids.items():
        scene.signal(node, KILL, agents, "its agent")
    return ends(0)


@kind("the end, controller killed, attach", 3)
def _attach_at_end(scene: Scene) -> Expectation:
    scene.victim.request_end()
    _attach(scene)
    return ends(0)


@kind("controller ended at the start", 8, needs_fresh_run=True)
def _start(scene: Scene) -> Expectation:
    scene.victim = scene.relaunch()
    scene.sleep(0.1, 3)
    signum = scene.rng.choice([KILL, KILL, signal.SIGINT, TERM])
    scene.signal_controller(signum)
    early = -signum  # before it had a say in it
    return ends() if signum == KILL else ends(128 + signum, early)


@kind("ours killed at the start", 5, needs_fresh_run=True)
def _start_on_hosts(scene: Scene) -> Expectation:
    run = scene.victim = scene.relaunch()
    scene.sleep(0.5, 3)
    node = scene.random_node()
    pids = [each.pid for each in run.our_processes(node)]
    if pids:
        scene.signal(node, KILL, [scene.rng.choice(pids)], "one of ours")
    return Expectation(Fate.EITHER)
