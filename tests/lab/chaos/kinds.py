"""Kinds of events, and what must follow from each."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tests.lab.chaos.judge import GOES_ON, Expectation, Fate, ends
from tests.lab.chaos.runs import DISCONNECT_S, LOST_S, Run
from tests.lab.chaos.scene import (
    INT,
    KILL,
    PROCESSES,
    STOP,
    TERM,
    Act,
    Scene,
    hits,
    pauses,
    pauses_controller,
    signals_controller,
)
from tests.lab.waiting import TimedOut, wait_until

UNRESPONSIVE_S = 45.0
"""The ladder gives a supervisor that hears nothing 13 s beyond its grace."""

LONG_S = 1.5 * DISCONNECT_S
LATE_S = DISCONNECT_S + 20
MOSTLY_KILLED = (KILL, KILL, TERM)


@dataclass(frozen=True)
class Kind:
    name: str
    weight: int
    act: Act
    needs_fresh_run: bool = False
    needs_launcher: bool = False


# Connections and controllers


def _agents(scene: Scene) -> Expectation:
    signum = scene.rng.choice(MOSTLY_KILLED)
    for node in scene.random_nodes():
        scene.signal(node, signum, scene.victim.agent_pids(node), "its agent")
    return GOES_ON


def _attach(scene: Scene) -> Expectation:
    run = scene.victim
    scene.signal_controller(KILL)
    scene.note("attach")
    run.controllers.append(run.controller)
    run.controller = scene.launcher.start("attach", "--run", run.name, "--cluster", "lab")
    run.is_followed = run.is_attached = True
    return GOES_ON


def _stop_victim(scene: Scene) -> Expectation:
    result = scene.run_stop()
    if result.code != 0:
        raise AssertionError(f"stop ended with {result!r}")
    return ends()


def _stop_after(scene: Scene) -> Expectation:
    scene.signal_controller(KILL)
    return _stop_victim(scene)


def _stop_beside(scene: Scene) -> Expectation:
    _stop_victim(scene)
    return ends(130)


def _hurried(scene: Scene) -> Expectation:
    scene.signal_controller(INT)
    scene.sleep(0.02, 0.4)
    scene.signal_controller(INT)
    return ends(130)


def _nobody_left(scene: Scene) -> Expectation:
    node = scene.random_node()
    run = scene.victim
    both = [run.supervisor(node), run.guardian(node)]
    scene.signal_controller(KILL)
    scene.end_unmarked(node)
    scene.signal(node, KILL, [*run.agent_pids(node), *both], "agents, guardian and supervisor")
    scene.sleep(0, 2)
    return _stop_victim(scene)


# The program


def _rank(scene: Scene) -> Expectation:
    node = scene.random_node()
    rank = scene.random_rank(node)
    signum = scene.rng.choice([KILL, KILL, signal.SIGSEGV])
    scene.signal(node, signum, [scene.victim.pids[rank]], f"rank {rank}")
    how = f"rank {rank} on {node} was killed by {signum.name}"
    return ends(1, says=f"first failure: {how}")


def _on_two_hosts(first: str) -> Act:
    def act(scene: Scene) -> Expectation:
        here, there = scene.rng.sample(list(scene.lab.hosts), 2)
        pids = PROCESSES["rank"](scene, there)
        scene.signal(here, KILL, PROCESSES[first](scene, here), first)
        scene.signal(there, KILL, pids, "rank")
        return ends(1)

    return act


def _grandchild(scene: Scene) -> Expectation:
    node = scene.random_node()
    pids = scene.victim.rank_children(node)
    signum = scene.rng.choice([KILL, KILL, STOP])
    if pids:
        scene.signal(node, signum, [scene.rng.choice(pids)], "a grandchild")
    return GOES_ON


def _rank_alone(scene: Scene) -> Expectation:
    scene.signal_controller(KILL)
    return hits("rank", expect=ends())(scene)


# Its beginning and its end


def _succeeds(scene: Scene) -> Expectation:
    scene.victim.request_end()
    return ends(0)


def _agent_at_end(scene: Scene) -> Expectation:
    pids = {node: scene.victim.agent_pids(node) for node in scene.random_nodes()}
    scene.victim.request_end()
    for node, agents in pids.items():
        scene.signal(node, KILL, agents, "its agent")
    return ends(0)


def _attach_at_end(scene: Scene) -> Expectation:
    scene.victim.request_end()
    _attach(scene)
    return ends(0)


def _start(scene: Scene) -> Expectation:
    scene.victim = scene.relaunch()
    scene.sleep(0.1, 3)
    signum = scene.rng.choice([KILL, KILL, INT, TERM])
    scene.signal_controller(signum)
    early = -signum  # before it had a say in it
    return ends() if signum == KILL else ends(128 + signum, early)


def _start_on_hosts(scene: Scene) -> Expectation:
    run = scene.victim = scene.relaunch()
    scene.sleep(0.5, 3)
    node = scene.random_node()
    pids = [each.pid for each in run.our_processes(node)]
    if pids:
        scene.signal(node, KILL, [scene.rng.choice(pids)], "one of ours")
    return Expectation(Fate.EITHER)


# What hits whole hosts, and so the bystander too


def _for_both(scene: Scene, expect: Expectation) -> Expectation:
    scene.bystander_expectation = expect
    return expect


def _cut_power(scene: Scene) -> str:
    node = scene.random_node()
    scene.note(f"{node} off")
    scene.lab[node].power_off()
    for run in (scene.victim, scene.bystander):
        run.powerless.add(node)
    return node


def _unplugged(scene: Scene) -> Expectation:
    node = scene.random_node()
    scene.note(f"{node} unplugged")
    scene.lab[node].unplug()
    scene.sleep(0.3, LOST_S / 3)
    scene.lab[node].plug()
    return _for_both(scene, GOES_ON)


def _isolated(scene: Scene) -> Expectation:
    node = scene.random_node()
    scene.note(f"{node} unplugged")
    scene.lab[node].unplug()
    for run in (scene.victim, scene.bystander):
        run.may_miss_bytes.add(node)
    return _for_both(scene, ends(4, undo=scene.lab[node].plug))


def _cut_off(scene: Scene) -> Expectation:
    nodes = scene.random_nodes()
    scene.note(f"cut off from {', '.join(nodes)}")
    everywhere = len(nodes) == len(scene.lab.hosts)
    with scene.lab.cut_off(*nodes):
        scene.sleep(0.5, DISCONNECT_S / 2 if everywhere else LOST_S + 3)
    return _for_both(scene, GOES_ON)


def _cut_off_for_long(scene: Scene) -> Expectation:
    scene.note("cut off from all hosts")
    with scene.lab.cut_off():
        scene.sleep(LONG_S)
    scene.bystander_expectation = GOES_ON if scene.bystander.shape.detached else ends(1)
    return ends(1)


def _power(scene: Scene) -> Expectation:
    node = _cut_power(scene)
    return _for_both(scene, ends(4, undo=scene.lab[node].power_on))


def _power_and_stop(scene: Scene) -> Expectation:
    expect = _power(scene)
    victim = scene.victim

    def close() -> None:
        expect.undo()
        done = scene.run_stop()
        assert done.code == 0, done
        victim.may_miss_bytes |= victim.powerless
        victim.powerless.clear()

    return replace(expect, undo=close)


def _reboot(scene: Scene) -> Expectation:
    node = _cut_power(scene)
    scene.sleep(0, 1)
    scene.note("on")
    scene.lab[node].power_on()
    return _for_both(scene, ends(1, 4))


def _stall(scene: Scene, nodes: Sequence[str]) -> Expectation:
    scene.note(f"the disks of {', '.join(nodes)} are frozen")
    for node in nodes:
        scene.lab[node].disk.freeze()
    scene.sleep(LOST_S + 1, 2 * LOST_S)
    for node in nodes:
        scene.lab[node].disk.thaw()
    return _for_both(scene, GOES_ON)


def _stalled_and_stopped(scene: Scene) -> Expectation:
    host = scene.lab[scene.random_node()]
    scene.note(f"the disk of {host.name} is frozen")
    host.disk.freeze()
    scene.sleep(0, LOST_S)
    scene.signal_controller(INT)
    scene.sleep(0.5, LOST_S)
    host.disk.thaw()
    return ends(130)


def _full(scene: Scene) -> Expectation:
    node = scene.random_node()
    host, runs = scene.lab[node], [scene.victim, scene.bystander]
    for run in runs:
        run.disk_was_full.add(node)
    scene.note(f"the disk of {node} is full")

    def has_ended(run: Run) -> bool:
        return run.last_kind(node) == "ended"

    host.disk.fill()
    wait_until(lambda: any(map(has_ended, runs)), "a run to end on a full disk", 20)
    with contextlib.suppress(TimedOut):
        wait_until(lambda: all(map(has_ended, runs)), "the other as well", 3)
    if not all("stopping" in run.kinds(node) for run in runs):
        scene.note("the other run has the room that the first had set aside: full again")
        host.disk.fill()
        wait_until(lambda: all(map(has_ended, runs)), "the other to end too", 20)
    return _for_both(scene, ends(1, says="No space left", undo=host.disk.free))


DEAF = ends(1, 4, within_s=UNRESPONSIVE_S)
DEAF_TO_US = ends(130, within_s=UNRESPONSIVE_S)
KINDS = [
    Kind("agent killed", 12, _agents),
    Kind("agent stopped for a while", 2, pauses("agent", LOST_S + 1)),
    Kind("controller killed", 3, signals_controller(KILL, within_s=LATE_S)),
    Kind("controller killed, attach", 4, _attach),
    Kind("controller killed, stop", 3, _stop_after),
    Kind("stop from elsewhere", 3, _stop_beside),
    Kind("Ctrl-C", 4, signals_controller(INT, TERM), needs_launcher=True),
    Kind("Ctrl-C twice", 2, _hurried, needs_launcher=True),
    Kind(
        "terminal closed",
        1,
        signals_controller(signal.SIGHUP, within_s=LATE_S),
        needs_launcher=True,
    ),
    Kind("controller stopped for a while", 2, pauses_controller(0.5, DISCONNECT_S / 2, GOES_ON)),
    Kind("controller stopped for long", 1, pauses_controller(LONG_S, LONG_S, ends(1))),
    Kind("supervisor killed", 8, hits("supervisor", signals=MOSTLY_KILLED, expect=ends(1))),
    Kind("supervisor stopped for a while", 3, pauses("supervisor", LOST_S / 3)),
    Kind("supervisor stopped", 1, hits("supervisor", signals=[STOP], expect=DEAF)),
    Kind(
        "supervisor stopped, Ctrl-C",
        1,
        hits("supervisor", signals=[STOP], then=[INT], expect=DEAF_TO_US),
        needs_launcher=True,
    ),
    Kind("guardian killed", 5, hits("guardian", expect=ends(1))),
    Kind("guardian asked to end", 2, hits("guardian", signals=[TERM], expect=GOES_ON)),
    Kind("guardian stopped for a while", 2, pauses("guardian", 1)),
    Kind("supervisor and guardian killed", 6, hits("supervisor", "guardian", expect=ends(5))),
    Kind("controller and guardian and supervisor killed, stop", 3, _nobody_left),
    Kind("all of ours on a host killed", 3, hits("ours", "torchrun", expect=ends(4, 5))),
    Kind("agent and supervisor killed", 3, hits("agent", "supervisor", expect=ends(1))),
    Kind("torchrun killed", 8, hits("torchrun", signals=MOSTLY_KILLED, expect=ends(1))),
    Kind("torchrun stopped for a while", 2, pauses("torchrun", 1)),
    Kind(
        "torchrun stopped, Ctrl-C",
        2,
        hits("torchrun", signals=[STOP], then=[INT], expect=ends(130)),
        needs_launcher=True,
    ),
    Kind("rank killed", 10, _rank),
    Kind("ranks killed on two hosts", 3, _on_two_hosts("rank")),
    Kind("rank's shim killed", 4, hits("shim", expect=ends(1))),
    Kind("rank stopped for a while", 2, pauses("rank", 1)),
    Kind(
        "rank stopped, Ctrl-C",
        2,
        hits("rank", signals=[STOP], then=[INT], expect=ends(130)),
        needs_launcher=True,
    ),
    Kind("grandchild killed or stopped", 5, _grandchild),
    Kind(
        "rank killed, Ctrl-C", 2, hits("rank", then=[INT], expect=ends(1, 130)), needs_launcher=True
    ),
    Kind("controller killed, rank killed", 4, _rank_alone),
    Kind("supervisor killed here, rank there", 3, _on_two_hosts("supervisor")),
    Kind("the end", 4, _succeeds),
    Kind("the end, agent killed", 3, _agent_at_end),
    Kind("the end, controller killed, attach", 3, _attach_at_end),
    Kind("controller ended at the start", 8, _start, needs_fresh_run=True),
    Kind("ours killed at the start", 5, _start_on_hosts, needs_fresh_run=True),
    Kind("cable out for a moment", 4, _unplugged),
    Kind("cable out for long", 3, _isolated),
    Kind("controller cut off for a while", 4, _cut_off),
    Kind("controller cut off for long", 2, _cut_off_for_long),
    Kind("power cut", 4, _power),
    Kind("power cut, stop", 2, _power_and_stop),
    Kind("reboot", 2, _reboot),
    Kind("disk stalls", 6, lambda scene: _stall(scene, [scene.random_node()])),
    Kind("all disks stall", 3, lambda scene: _stall(scene, list(scene.lab.hosts))),
    Kind("disk stalls, Ctrl-C", 2, _stalled_and_stopped, needs_launcher=True),
    Kind("disk full", 4, _full),
]
