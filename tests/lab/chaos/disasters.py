"""The kinds of events that hit whole hosts, and so the bystander too."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace

from tests.lab.chaos.judge import ON, Expect, over
from tests.lab.chaos.kinds import KINDS, kind
from tests.lab.chaos.runs import DISCONNECT_S, LOST_S, Run
from tests.lab.chaos.scene import Scene
from tests.lab.lab import LabError, wait_until

__all__ = ["KINDS"]


def _everyone(scene: Scene, expect: Expect) -> Expect:
    scene.beside = expect
    return expect


def _lost_power(scene: Scene, node: str) -> None:
    for run in (scene.victim, scene.bystander):
        run.powerless.add(node)


def _missed(scene: Scene, *nodes: str) -> None:
    """Take into account that the last bytes of a host may not have reached the controllers."""
    for run in (scene.victim, scene.bystander):
        run.cut.update(nodes)


def _plug(scene: Scene, node: str) -> Callable[[], None]:
    return scene.host(node).plug


@kind("cable out for a moment", 4)
def _unplugged(scene: Scene) -> Expect:
    node = scene.node()
    scene.note(f"{node} unplugged")
    scene.host(node).unplug()
    scene.wait(0.3, LOST_S / 3)
    scene.host(node).plug()
    return _everyone(scene, ON)


@kind("cable out for long", 3)
def _isolated(scene: Scene) -> Expect:
    node = scene.node()
    scene.note(f"{node} unplugged")
    scene.host(node).unplug()
    _missed(scene, node)
    return _everyone(scene, over(4, undo=_plug(scene, node)))


@kind("controller cut off for a while", 4)
def _cut_off(scene: Scene) -> Expect:
    nodes = scene.nodes()
    scene.note(f"cut off from {', '.join(nodes)}")
    everywhere = len(nodes) == len(scene.lab.hosts)
    with scene.lab.cut_off(*nodes):
        scene.wait(0.5, DISCONNECT_S - 3 if everywhere else LOST_S + 3)
    return _everyone(scene, ON)


@kind("controller cut off for long", 2)
def _cut_off_for_long(scene: Scene) -> Expect:
    scene.note("cut off from all hosts")
    with scene.lab.cut_off():
        scene.wait(DISCONNECT_S + 3)
    scene.beside = ON if scene.bystander.shape.detached else over(1)
    return over(1)


@kind("power cut", 4)
def _power(scene: Scene) -> Expect:
    node = scene.node()
    scene.note(f"{node} off")
    scene.host(node).power_off()
    _lost_power(scene, node)
    return _everyone(scene, over(4, undo=scene.host(node).power_on))


@kind("power cut, stop", 2)
def _power_and_stop(scene: Scene) -> Expect:
    expect = _power(scene)
    victim = scene.victim

    def close() -> None:
        expect.undo()
        done = scene.verb("stop")
        assert done.code == 0, done
        victim.cut |= victim.powerless
        victim.powerless.clear()

    return replace(expect, undo=close)


@kind("reboot", 2)
def _reboot(scene: Scene) -> Expect:
    node = scene.node()
    scene.note(f"{node} off and on")
    scene.host(node).power_off()
    _lost_power(scene, node)
    scene.wait(0, 1)
    scene.host(node).power_on()
    return _everyone(scene, over(1, 4))


@kind("disk full", 4)
def _full(scene: Scene) -> Expect:
    node = scene.node()
    host, both = scene.host(node), [scene.victim, scene.bystander]
    for run in both:
        run.torn.add(node)
    scene.note(f"the disk of {node} is full")
    host.fill_disk()
    wait_until(lambda: any(_ended(run, node) for run in both), "a run to end on a full disk", 20)
    with contextlib.suppress(LabError):
        wait_until(lambda: all(_ended(run, node) for run in both), "the other as well", 3)
    if not all("stopping" in run.kinds(node) for run in both):
        scene.note("the other run has the room that the first had set aside: full again")
        host.fill_disk()
        wait_until(lambda: all(_ended(run, node) for run in both), "the other to end too", 20)
    return _everyone(scene, over(1, says="No space left", undo=host.free_disk))


def _ended(run: Run, node: str) -> bool:
    return run.last(node) == "ended"
