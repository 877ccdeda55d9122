"""Events that hit whole hosts, and so the bystander too."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable
from dataclasses import replace

from tests.lab.chaos.judge import GOES_ON, Expectation, ends
from tests.lab.chaos.kinds import KINDS, kind
from tests.lab.chaos.runs import DISCONNECT_S, LOST_S, Run
from tests.lab.chaos.scene import Scene
from tests.lab.waiting import TimedOut, wait_until

__all__ = ["KINDS"]


def _same_for_bystander(scene: Scene, expect: Expectation) -> Expectation:
    scene.bystander_expectation = expect
    return expect


def _lost_power(scene: Scene, node: str) -> None:
    for run in (scene.victim, scene.bystander):
        run.powerless.add(node)


def _may_miss_bytes(scene: Scene, *nodes: str) -> None:
    """Take into account that the last bytes of a host may not have reached the controllers."""
    for run in (scene.victim, scene.bystander):
        run.may_miss_bytes.update(nodes)


def _plug(scene: Scene, node: str) -> Callable[[], None]:
    return scene.host(node).plug


@kind("cable out for a moment", 4)
def _unplugged(scene: Scene) -> Expectation:
    node = scene.random_node()
    scene.note(f"{node} unplugged")
    scene.host(node).unplug()
    scene.sleep(0.3, LOST_S / 3)
    scene.host(node).plug()
    return _same_for_bystander(scene, GOES_ON)


@kind("cable out for long", 3)
def _isolated(scene: Scene) -> Expectation:
    node = scene.random_node()
    scene.note(f"{node} unplugged")
    scene.host(node).unplug()
    _may_miss_bytes(scene, node)
    return _same_for_bystander(scene, ends(4, undo=_plug(scene, node)))


@kind("controller cut off for a while", 4)
def _cut_off(scene: Scene) -> Expectation:
    nodes = scene.random_nodes()
    scene.note(f"cut off from {', '.join(nodes)}")
    everywhere = len(nodes) == len(scene.lab.hosts)
    with scene.lab.cut_off(*nodes):
        scene.sleep(0.5, DISCONNECT_S / 2 if everywhere else LOST_S + 3)
    return _same_for_bystander(scene, GOES_ON)


@kind("controller cut off for long", 2)
def _cut_off_for_long(scene: Scene) -> Expectation:
    scene.note("cut off from all hosts")
    with scene.lab.cut_off():
        scene.sleep(1.5 * DISCONNECT_S)
    scene.bystander_expectation = GOES_ON if scene.bystander.shape.detached else ends(1)
    return ends(1)


@kind("power cut", 4)
def _power(scene: Scene) -> Expectation:
    node = scene.random_node()
    scene.note(f"{node} off")
    scene.host(node).power_off()
    _lost_power(scene, node)
    return _same_for_bystander(scene, ends(4, undo=scene.host(node).power_on))


@kind("power cut, stop", 2)
def _power_and_stop(scene: Scene) -> Expectation:
    expect = _power(scene)
    victim = scene.victim

    def close() -> None:
        expect.undo()
        done = scene.run_verb("stop")
        assert done.code == 0, done
        victim.may_miss_bytes |= victim.powerless
        victim.powerless.clear()

    return replace(expect, undo=close)


@kind("reboot", 2)
def _reboot(scene: Scene) -> Expectation:
    node = scene.random_node()
    scene.note(f"{node} off and on")
    scene.host(node).power_off()
    _lost_power(scene, node)
    scene.sleep(0, 1)
    scene.host(node).power_on()
    return _same_for_bystander(scene, ends(1, 4))


@kind("disk stalls", 6)
def _stalled(scene: Scene) -> Expectation:
    return _stall(scene, [scene.random_node()])


@kind("all disks stall", 3)
def _all_stalled(scene: Scene) -> Expectation:
    return _stall(scene, list(scene.lab.hosts))


def _stall(scene: Scene, nodes: list[str]) -> Expectation:
    scene.note(f"the disks of {', '.join(nodes)} are frozen")
    for node in nodes:
        scene.host(node).freeze_disk()
    scene.sleep(LOST_S + 1, 2 * LOST_S)
    for node in nodes:
        scene.host(node).thaw_disk()
    return _same_for_bystander(scene, GOES_ON)


@kind("disk stalls, Ctrl-C", 2, needs_launcher=True)
def _stalled_and_stopped(scene: Scene) -> Expectation:
    host = scene.host(scene.random_node())
    scene.note(f"the disk of {host.name} is frozen")
    host.freeze_disk()
    scene.sleep(0, LOST_S)
    scene.signal_controller(signal.SIGINT)
    scene.sleep(0.5, LOST_S)
    host.thaw_disk()
    return ends(130)


@kind("disk full", 4)
def _full(scene: Scene) -> Expectation:
    node = scene.random_node()
    host, runs = scene.host(node), [scene.victim, scene.bystander]
    for run in runs:
        run.disk_was_full.add(node)
    scene.note(f"the disk of {node} is full")
    host.fill_disk()
    wait_until(lambda: any(_ended(run, node) for run in runs), "a run to end on a full disk", 20)
    with contextlib.suppress(TimedOut):
        wait_until(lambda: all(_ended(run, node) for run in runs), "the other as well", 3)
    if not all("stopping" in run.kinds(node) for run in runs):
        scene.note("the other run has the room that the first had set aside: full again")
        host.fill_disk()
        wait_until(lambda: all(_ended(run, node) for run in runs), "the other to end too", 20)
    return _same_for_bystander(scene, ends(1, says="No space left", undo=host.free_disk))


def _ended(run: Run, node: str) -> bool:
    return run.last_kind(node) == "ended"
