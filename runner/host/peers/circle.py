"""How the supervisors of one attempt keep in touch, so that one's failure ends all.

Every supervisor keeps one connection to the master's, the hub. Who closes it without a word of
farewell is dead; who is silent for `lost_s` is lost; either ends the attempt everywhere, whether a
controller lives or not. Nothing here blocks, and nothing listens once the run is over.
"""

from __future__ import annotations

import socket
from typing import Callable, Optional

from runner.core.model.order import Order
from runner.host.peers.group import Circle, News, Watch
from runner.host.peers.hub import Host
from runner.host.peers.member import Member


def circle_of(
    order: Order,
    listener: Optional[socket.socket],
    token: bytes,
    watch: Watch,
    unwatch: Callable[[int], None],
    news: News,
) -> Circle:
    """Return how the supervisor of this order keeps in touch with the others."""
    hub = order.hub
    if hub is None or not token:
        return Circle()
    if hub.node != order.node:
        return Member(order, hub, token, watch, unwatch, news)
    if listener is None:
        return Circle()
    try:
        return Host(listener, order, hub, token, watch, unwatch, news)
    except OSError as error:  # somebody else listens there meanwhile
        news.apart(f"cannot listen on port {hub.port}: {error.strerror}")
        return Circle()
