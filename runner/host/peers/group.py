"""Group of the supervisors of one attempt: each sends its whole state, members to the hub alone.

It is sent at intervals, and at once when there is news. Nothing here blocks before the end, and
nothing listens after it.
"""

from __future__ import annotations

import contextlib
import socket
import time
from dataclasses import replace
from typing import Any, List, Optional, Tuple, Union

from runner.core.wire.codec import decode, encode
from runner.core.wire.order import Hub, Order
from runner.core.wire.states import Reason, ReasonKind
from runner.host.peers.fold import HubFold, MemberFold, PeerObserver
from runner.host.peers.links import LINGER_S, Listener, OutgoingLink, seal, unseal
from runner.host.peers.state import (
    LONG_S,
    MAX_DETAIL,
    Departure,
    LastHeard,
    PeerState,
    Phase,
    Upcoming,
    boot_time_ns,
)
from runner.host.process.event_loop import EventLoop

DEATH_TIMEOUT_S = 1.0  # for the news of a death to be read: what is left must not live on for long


class PeerGroup:
    """This supervisor's part: hub or member. `fold` is what it knows of the others."""

    def __init__(
        self,
        order: Order,
        hub: Hub,
        token: bytes,
        loop: EventLoop,
        observer: PeerObserver,
        listener: Optional[socket.socket] = None,
        upcoming: Optional[Upcoming] = None,
    ) -> None:
        """Join the others: as the hub on `listener`, as a member without.

        `upcoming` is the decision of the hub by which this attempt began.
        """
        now = time.monotonic()
        self.fold: Union[HubFold, MemberFold]
        self._links: Union[Listener, OutgoingLink, None]
        if listener is None:
            self.fold = MemberFold(order, hub, observer, now)
            address = (hub.addr, hub.port)
            self._links = OutgoingLink(
                address, loop, self.fold.silence_s, self.first_line, self._take
            )
        else:
            self.fold = HubFold(order, hub, observer, now)
            self.fold.expect(upcoming.nodes[1:] if upcoming is not None else ())
            self._links = Listener(listener, loop, self.first_line, self._take)
        self._order = order
        self._token = token
        self._heard = LastHeard(now, now)
        self._detached = False
        self._stalled_s = 0.0
        self._phase = Phase.ACTIVE
        self._stop: Optional[Reason] = None
        self._upcoming = upcoming
        self._refusal = ""
        self._said: List[Any] = []  # the news in the last state that was sent
        self._next_at = 0.0

    def tick(self, heard: LastHeard, *, detached: bool, stalled_s: float) -> Optional[float]:
        """Exchange states; return for how long no rank has made progress on any host.

        This host has `heard` controllers then: on a hub, any host has. It needs none if `detached`.
        """
        now = time.monotonic()
        self._heard = heard
        self._detached = detached
        self._stalled_s = min(stalled_s, LONG_S)
        if self._links is not None:
            self.fold.check(now, self._links.problem)
            if self._links.is_refused and isinstance(self.fold, MemberFold):
                self.fold.on_refused(now)
            self._links.tick()
            if now >= self._next_at or self._said != self._state().news:
                self._send()
            if self.fold.hub_finished:
                self._links.close()
                self._links = None
        return self.fold.stalled_s(self._stalled_s, now)

    def stop(self, reason: Reason) -> None:
        """Tell the others to stop; the first reason counts, unless the next one is final."""
        if self._stop is None or reason.is_final:
            self._stop = replace(reason, detail=reason.detail[:MAX_DETAIL])
            self._send()

    def pend(self) -> None:
        """Say that this part has ended, with proof."""
        self._phase = Phase.PENDING
        self._send()

    def decide(self, decided: Union[Upcoming, str]) -> None:
        """Say what follows, or why nothing does."""
        if isinstance(decided, Upcoming):
            self._upcoming = decided
        else:
            self._refusal = decided
        self._send()

    def leave(self) -> None:
        """Say that this part has ended, and let the others read it."""
        links = self._links
        if links is not None:
            self._phase = Phase.ENDED
            self._send()
            self._links = None
            links.close(LINGER_S)

    def first_line(self) -> bytes:
        """Return what to say on a new link."""
        return seal(self._token, encode(self._state()))

    def _take(self, line: bytes) -> str:
        """Take the state of another supervisor; return its node, "" if it is no new one."""
        state = decode(PeerState, unseal(self._token, line))
        return state.node if self.fold.take(state, time.monotonic()) else ""

    def _send(self) -> None:
        if self._links is not None:
            self._said = self._state().news
            self._next_at = time.monotonic() + self.fold.heartbeat_s
            self._links.send(self.first_line())

    def _state(self) -> PeerState:
        now = time.monotonic()
        upcoming = self._upcoming
        if upcoming is not None and upcoming.attempt == self._order.attempt:
            names = {*upcoming.nodes, *upcoming.spares} - {self._order.node}
            if names <= self.fold.heard.keys():  # everybody has begun it
                upcoming = None
        stalled_s: Optional[float] = self._stalled_s
        departed: Tuple[Departure, ...] = ()
        if isinstance(self.fold, HubFold):  # which speaks for all
            stalled_s = self.fold.stalled_s(self._stalled_s, now)
            departed = self.fold.departed(now)
        return PeerState(
            run=self._order.run_id,
            attempt=self._order.attempt,
            node=self._order.node,
            start=self._order.rejoin_count,
            counter=boot_time_ns(),
            phase=self._phase,
            controller_age_s=round(now - self._heard.controller, 3),
            launch_age_s=round(now - self._heard.launch, 3),
            stalled_s=stalled_s,
            detached=self._detached,
            stop=self._stop,
            departed=departed,
            upcoming=upcoming,
            refusal=self._refusal,
        )


def tell_death(order: Order, token: bytes, reason: str, phase: Phase = Phase.DEAD) -> None:
    """Tell the hub, in the place of a supervisor that was killed, that it is dead.

    Where the hub's own was, nothing listens any more, and that says so.
    """
    hub = order.hub
    if hub is None or hub.node == order.node or not token:
        return
    state = PeerState(
        run=order.run_id,
        attempt=order.attempt,
        node=order.node,
        start=order.rejoin_count,
        counter=boot_time_ns(),
        phase=phase,
        stop=Reason(ReasonKind.SUPERVISOR, order.node, detail=reason[:MAX_DETAIL]),
    )
    with contextlib.suppress(OSError):
        address = (hub.addr, hub.port)
        with socket.create_connection(address, timeout=DEATH_TIMEOUT_S) as connection:
            connection.sendall(seal(token, encode(state)))
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(65536):  # until the hub has read it
                pass
