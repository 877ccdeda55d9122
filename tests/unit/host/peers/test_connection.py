"""Connections between supervisors: their greeting."""

from __future__ import annotations

import contextlib
import socket

import pytest

from runner.host.peers.connection import CLIENT, SERVER, Identity, PeerConnection


@pytest.mark.parametrize("name", ["gpu1", "büro", "計算機"])
def test_any_legal_name_of_a_node_can_be_greeted(name: str) -> None:
    """A node whose name is not ASCII joins its hub, too."""
    ends = socket.socketpair()
    names = ("hub", name)
    roles = (SERVER, CLIENT)
    with contextlib.ExitStack() as stack:
        peers = []
        for end, node, role in zip(ends, names, roles, strict=True):
            stack.enter_context(end).setblocking(False)
            peers.append(PeerConnection(end, Identity(node, "r1", b"token"), role))
        for peer in peers:
            peer.send(command="ping")
        for _ in range(3):
            for peer in peers:
                with contextlib.suppress(BlockingIOError):
                    peer.receive()
    assert [peer.name for peer in peers] == [name, "hub"]
