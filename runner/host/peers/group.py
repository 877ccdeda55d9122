"""What both ends of a connection between supervisors have in common, and what they hear by it."""

from __future__ import annotations

import socket
import time
from typing import Any, Callable, Dict, Optional

from runner.core.local_pause import Awake
from runner.core.model.order import Hub, Order
from runner.core.protocol.events import Cause
from runner.host.peers.connection import Peer

APART_S = 10.0
"""After so long without the hub that is said; it may still be copying its code."""

PROVE_S = 5.0
"""How long a connection may take to prove that it is of ours."""

COME_S = 60.0
"""How long hosts may take to meet in an attempt that they start by themselves."""

FAREWELL_S = 1.0
BEAT_S = 2.0

Watch = Callable[[int, Callable[[], Any]], None]


class News:
    """What a supervisor wants to hear of the others."""

    def peer_stops(self, reason: str, cause: Cause) -> None:
        """The others stop."""

    def peer_lost(self, peer: str, reason: str, since: float) -> None:
        """A node was heard of last at `since`."""

    def peer_left(self, peer: str, reason: str, since: float, nodes: int) -> None:
        """A node was heard of last at `since`, and the run goes on with `nodes` (0: not known)."""

    def joined(self) -> None:
        """The hub is reached."""

    def apart(self, reason: str) -> None:
        """The hub cannot be reached so far."""

    def controller_heard(self, when: float, *, keep: bool) -> None:
        """Another supervisor heard a controller then; with `keep`, none is needed any more."""


class Circle:
    """A supervisor that is alone: nobody to keep in touch with."""

    def tick(self, heard: float, *, keep: bool, still_s: float) -> Optional[float]:  # noqa: ARG002 (see below)
        """Look after the connections.

        Args:
            heard: When we heard a controller.
            keep: Whether none is needed any more.
            still_s: For how long nothing of the run has moved here.

        Returns:
            For how long nothing has moved anywhere; None where that is not known.
        """
        return still_s

    def stop(self, reason: str, cause: Cause, *, keep: bool) -> None:
        """Tell the others that we stop, and why; `keep` as for `tick`."""

    def pass_on_keep(self) -> bool:
        """Have the hub say that no controller is needed any more, as one told us.

        Returns:
            Whether it will; else there is no hub to ask, and it is for us to say.
        """
        return False

    @property
    def agreed(self) -> bool:
        """Whether all have heard that all stop, and the hub's `keep` with it, or will not."""
        return True

    @property
    def needed(self) -> bool:
        """Whether others depend on us."""
        return False

    @property
    def over(self) -> bool:
        """Whether the others have said farewell."""
        return False

    def leave(self) -> None:
        """Say farewell; returns soon."""


class Connected(Circle):
    """What both ends of the connections have in common."""

    def __init__(
        self,
        order: Order,
        hub: Hub,
        token: bytes,
        watch: Watch,
        unwatch: Callable[[int], None],
        news: News,
    ) -> None:
        self._order, self._hub, self._token = order, hub, token
        self._watch, self._unwatch, self._news = watch, unwatch, news
        self._reported = 0.0
        self._awake = Awake()
        self._beat_s = min(BEAT_S, hub.lost_s / 5)
        self._next_beat = 0.0

    def _greet(self, connection: socket.socket, role: bytes, hear: Callable[[Peer], None]) -> Peer:
        subject = f"{self._order.run_id}/{self._order.attempt}"
        peer = Peer(connection, self._token, subject, self._order.node, role)
        self._watch(peer.fileno(), lambda: hear(peer))
        return peer

    def _part(self, peer: Peer, linger_s: float = 0.0) -> None:
        self._unwatch(peer.fileno())
        peer.close(linger_s)

    def _take(self, message: Dict[str, Any]) -> None:
        if message["say"] == "here":
            self._reported = max(self._reported, time.monotonic() - float(message["heard"]))
            self._news.controller_heard(self._reported, keep=bool(message["keep"]))
        elif message["say"] == "left":
            since = time.monotonic() - float(message["age"])
            known = (str(message["peer"]), str(message["reason"]))
            self._news.peer_left(*known, since, int(message["nodes"]))
        elif message["say"] == "stop":
            if message["keep"]:
                self._news.controller_heard(self._reported, keep=True)
            self._news.peer_stops(str(message["reason"]), Cause(message["cause"]))

    def _due(self) -> bool:
        now = time.monotonic()
        if now < self._next_beat:
            return False
        self._next_beat = now + self._beat_s
        return True


def beat(heard: float, *, keep: bool, still_s: Optional[float]) -> Dict[str, Any]:
    """Return the message that says we are here, with what `Circle.tick` was told."""
    age = round(time.monotonic() - heard, 3)
    return {"say": "here", "heard": age, "keep": keep, "still": still_s}


def stop_word(reason: str, cause: Cause, *, keep: bool) -> Dict[str, Any]:
    """Return the message that says that we stop, with what `Circle.stop` was told."""
    return {"say": "stop", "reason": reason, "cause": cause.value, "keep": keep}
