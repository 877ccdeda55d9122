"""Peer group of one attempt: its supervisors in touch, so that one's failure ends all.

Every supervisor keeps one connection to that of the master node, the hub. One that closes it without
a goodbye is dead, one that is silent for `lost_s` is lost; either ends the attempt everywhere,
with or without a controller. Nothing here blocks, and nothing listens once the run is over.
"""

from __future__ import annotations

import socket
from typing import Optional

from runner.core.model.order import Order
from runner.host.peers.group import PeerGroup, PeerObserver
from runner.host.peers.hub import HubServer
from runner.host.peers.member import HubClient
from runner.host.process.event_loop import EventLoop


def join_peers(
    order: Order,
    listener: Optional[socket.socket],
    token: bytes,
    loop: EventLoop,
    observer: PeerObserver,
) -> PeerGroup:
    """Return the part of this order's supervisor: hub, member, or alone."""
    hub = order.hub
    if hub is None or not token:
        return PeerGroup()
    if hub.node != order.node:
        return HubClient(order, hub, token, loop, observer)
    if listener is None:
        return PeerGroup()
    try:
        return HubServer(listener, order, hub, token, loop, observer)
    except OSError as error:  # something else has taken the port meanwhile
        observer.on_hub_unreachable(f"cannot listen on port {hub.port}: {error.strerror}")
        return PeerGroup()
