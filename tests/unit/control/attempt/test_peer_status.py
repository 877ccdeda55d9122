"""Peer status: the hosts or the controller decide about a relaunch."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import pytest

from runner.control.attempt.node import AttemptNode, NodeConnection
from runner.control.attempt.peer_status import PeerStatus
from runner.control.rpc.log_tail import LogTailer
from runner.core.protocol.events import Detached, HubJoined, HubUnreachable, Relaunching
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

    def decide_after(self, **happened: HubJoined | HubUnreachable | Detached) -> bool:
        """Whether the hosts decide after what nodes say."""
        for name, body in happened.items():
            self.peer_status.on_event(name, body)
        return self.peer_status.hosts_decide


@pytest.mark.parametrize("node", ["a", "b"])
def test_the_hosts_do_once_one_of_them_keeps_the_run(node: str) -> None:
    """The hub tells the others; what they say may come later than the failure."""
    scene = Scene()
    assert not scene.decide_after(b=HubJoined(), c=HubJoined())
    assert scene.decide_after(**{node: Detached()})
    assert not scene.peer_status.all_detached


def test_a_node_that_is_apart_has_no_vote() -> None:
    """It was told of the detach; the hub was not yet, when something failed."""
    scene = Scene()
    apart = HubUnreachable("a at 10.0.0.1 port 29513: it does not answer")
    assert not scene.decide_after(b=HubJoined(), c=apart)
    assert not scene.decide_after(c=Detached())
    assert scene.decide_after(a=Detached())


def test_who_kept_before_it_met_the_others_has_none_either() -> None:
    """The hub may have stopped by then, and have said so."""
    scene = Scene()
    assert not scene.decide_after(b=HubJoined(), c=Detached())
    assert not scene.decide_after(c=HubJoined())


def test_they_do_where_the_hub_is_lost_and_they_go_on() -> None:
    """An elastic run without its hub: those who had met keep it by themselves."""
    scene = Scene()
    assert not scene.decide_after(b=HubJoined(), c=HubJoined())
    scene.peer_status.on_hub_lost()
    assert scene.decide_after(b=Detached())


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
