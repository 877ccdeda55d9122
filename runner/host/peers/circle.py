"""How the supervisors of one attempt keep in touch, so that one's failure ends all.

Every supervisor keeps one connection to the master's, the hub. Who closes it without a word of
farewell is dead; who is silent for `lost_s` is lost; either ends the attempt everywhere, whether a
controller lives or not. Nothing here blocks, and nothing listens once the run is over.
"""

from __future__ import annotations

import socket
from typing import Callable, Optional

from runner.core.model.order import Order
from runner.host.peers.group import AddReader, PeerGroup, PeerListener
from runner.host.peers.hub import HubServer
from runner.host.peers.member import HubClient


def join_peers(
    order: Order,
    listener: Optional[socket.socket],
    token: bytes,
    add_reader: AddReader,
    remove_reader: Callable[[int], None],
    peer_listener: PeerListener,
) -> PeerGroup:
    """Return how the supervisor of this order keeps in touch with the others."""
    hub = order.hub
    if hub is None or not token:
        return PeerGroup()
    if hub.node != order.node:
        return HubClient(order, hub, token, add_reader, remove_reader, peer_listener)
    if listener is None:
        return PeerGroup()
    try:
        return HubServer(listener, order, hub, token, add_reader, remove_reader, peer_listener)
    except OSError as error:  # somebody else listens there meanwhile
        peer_listener.on_hub_unreachable(f"cannot listen on port {hub.port}: {error.strerror}")
        return PeerGroup()
