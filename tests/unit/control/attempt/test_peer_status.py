"""Peer status: the hosts or the controller decide about a relaunch."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from runner.control.attempt.node import AttemptNode, NodeConnection
from runner.control.attempt.peer_status import PeerStatus
from runner.control.rpc.log_tail import LogTailer
from runner.core.protocol.events import Detached, HubJoined, Relaunching
from runner.ui.layout import fold_names
from tests.unit.core.relaunch.test_handover import asked, enrolled, told


class Scene:
    """Three nodes that could vote; the first is the hub."""

    def __init__(self, *, disconnect_s: float = 600.0) -> None:
        wanted = replace(asked("abc"), disconnect_s=disconnect_s)
        plan = enrolled(wanted, told("abc")).plan
        by_name = {node.name: node for node in wanted.nodes}
        tailer = cast("LogTailer", None)
        self.nodes = {
            share.node: AttemptNode(share, by_name[share.node], tailer, NodeConnection(None))
            for share in plan.nodes
        }
        self.peer_status = PeerStatus(plan, self.nodes, fold_names)

    def decide_after(self, **happened: HubJoined | Detached) -> bool:
        """Whether the hosts decide after what nodes say."""
        for name, body in happened.items():
            self.peer_status.on_event(name, body)
        return self.peer_status.hosts_decide


def test_the_hosts_do_once_one_of_them_keeps_the_run() -> None:
    """The hub tells the others; what they say may come later than the failure."""
    scene = Scene()
    assert not scene.decide_after(b=HubJoined(), c=HubJoined())
    assert scene.decide_after(b=Detached())
    assert not scene.peer_status.all_detached


def test_they_do_from_the_start_where_nobody_is_needed() -> None:
    """`disconnect_s=never`, or an attempt that they began."""
    scene = Scene(disconnect_s=0.0)
    assert scene.peer_status.hosts_decide
    assert scene.peer_status.all_detached


def test_a_relaunch_by_the_hosts_is_told_once() -> None:
    """With its nodes as a range, however many they are."""
    status = Scene().peer_status
    relaunching = Relaunching(1, tuple(f"node{number}" for number in range(1, 201)), "node7 failed")
    said = [status.on_event(name, relaunching) for name in "ab"]
    assert said == ["the hosts relaunch the run: attempt 2, on node[1-200]", ""]
