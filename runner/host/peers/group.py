"""Group of the supervisors of one attempt: each sends its whole state, members to the hub alone.

It is sent at intervals, and at once when there is news. Nothing here blocks before the end, and
nothing listens after it.
"""

from __future__ import annotations

import contextlib
import socket
import time
from dataclasses import replace
from typing import Any, Callable, List, Optional, Union

from runner.core.wire.codec import decode, encode
from runner.core.wire.events import HubUnreachable
from runner.core.wire.order import Order
from runner.core.wire.states import Reason, ReasonKind
from runner.host.peers.fold import (
    LONG_S,
    MAX_DETAIL,
    HubFold,
    LastHeard,
    MemberFold,
    News,
    PeerState,
    Phase,
    Upcoming,
    boot_time_ns,
)
from runner.host.peers.links import LINGER_S, Link, Listener, OutgoingLink, seal, unseal
from runner.host.process.event_loop import EventLoop

DEATH_TIMEOUT_S = 1.0  # for the news of a death to be read: what is left must not live on for long


class PeerGroup:
    """This supervisor's part: hub or member.

    `fold` is what it knows of the others, None if it is alone. `tell` gets what follows from that.
    """

    def __init__(self, order: Order, token: bytes, tell: Callable[[News], None]) -> None:
        now = time.monotonic()
        self.fold: Union[HubFold, MemberFold, None] = None
        self._links: Union[Listener, OutgoingLink, None] = None
        self._order = order
        self._token = token
        self._tell = tell
        self._own = _state_of(order, Phase.ACTIVE)
        self._heard = LastHeard(now, now)
        self._stalled_s = 0.0
        self._said: List[Any] = []  # the news in the last state that was sent
        self._next_at = 0.0

    def join(
        self,
        loop: EventLoop,
        listener: Optional[socket.socket],
        upcoming: Optional[Upcoming] = None,
    ) -> None:
        """Keep in touch from now on: as the hub on `listener`, as a member without.

        `upcoming` is the decision of the hub by which this attempt began.
        """
        order = self._order
        hub = order.hub
        if hub is None or not self._token:
            return
        now = time.monotonic()
        if hub.node != order.node:
            self.fold = MemberFold(order, hub, self._tell, now)
            address = (hub.addr, hub.port)
            silence_s = self.fold.silence_s
            self._links = OutgoingLink(address, loop, silence_s, self.first_line, self._take)
        elif listener is not None:
            try:
                self._links = Listener(listener, loop, self._take, say_first=self.first_line)
            except OSError as error:  # something else has taken the port meanwhile
                self._tell(HubUnreachable(f"its own port {hub.port}: {error.strerror}"))
                return
            self.fold = HubFold(order, hub, self._tell, now)
            self.fold.expect(upcoming.nodes[1:] if upcoming is not None else ())
            self._own = replace(self._own, upcoming=upcoming)

    def tick(self, heard: LastHeard, *, detached: bool, stalled_s: float) -> Optional[float]:
        """Exchange states; return for how long no rank has made progress on any host.

        This host has `heard` controllers then: on a hub, any host has. It needs none if `detached`.
        """
        now = time.monotonic()
        self._heard = heard
        self._own = replace(self._own, detached=detached)
        self._stalled_s = min(stalled_s, LONG_S)
        if self.fold is None:
            return stalled_s
        if self._links is not None:
            self.fold.check(now, self._links.error)
            self._links.tick()
            if now >= self._next_at or self._said != self._state().news:
                self._send()
            if self.fold.hub_finished:
                self._links.close()
                self._links = None
        return self.fold.stalled_s(self._stalled_s, now)

    def stop(self, reason: Reason) -> None:
        """Tell the others to stop; the first reason counts, unless the next one is final."""
        if self.fold is not None:
            self.fold.is_stopping = True
        if self._own.stop is None or reason.is_final:
            self._say(stop=replace(reason, detail=reason.detail[:MAX_DETAIL]))

    def pend(self) -> None:
        """Say that this part has ended, with proof."""
        self._say(phase=Phase.PENDING)

    def decide(self, decided: Union[Upcoming, str]) -> None:
        if isinstance(decided, Upcoming):
            self._say(upcoming=decided)
        else:
            self._say(refusal=decided)

    def leave(self) -> None:
        """Say that this part has ended, and let the others read it."""
        self._say(phase=Phase.ENDED)
        if self._links is not None:
            self._links.close(LINGER_S)
            self._links = None

    def first_line(self) -> bytes:
        return seal(self._token, encode(self._state()))

    def _take(self, _: Link, line: bytes) -> str:
        """Take the state of another supervisor; return its node, "" if it is no new one."""
        state = decode(PeerState, unseal(self._token, line))
        is_news = self.fold is not None and self.fold.take(state, time.monotonic())
        return state.node if is_news else ""

    def _say(self, **changes: Any) -> None:
        self._own = replace(self._own, **changes)
        self._send()

    def _send(self) -> None:
        if self._links is not None and self.fold is not None:
            self._said = self._state().news
            self._next_at = time.monotonic() + self.fold.heartbeat_s
            self._links.send(self.first_line())

    def _state(self) -> PeerState:
        now = time.monotonic()
        state = replace(
            self._own,
            counter=boot_time_ns(),
            controller_age_s=round(now - self._heard.controller, 3),
            launch_age_s=round(now - self._heard.launch, 3),
            stalled_s=self._stalled_s,
        )
        if not isinstance(self.fold, HubFold):
            return state
        upcoming = state.upcoming
        if upcoming is not None and upcoming.attempt == state.attempt:
            names = {*upcoming.nodes, *upcoming.spares} - {state.node}
            if names <= self.fold.heard.keys():  # everybody has begun it
                upcoming = None
        # It speaks for all.
        return replace(
            state,
            stalled_s=self.fold.stalled_s(self._stalled_s, now),
            departed=self.fold.departed(now),
            upcoming=upcoming,
        )


def _state_of(order: Order, phase: Phase, **more: Any) -> PeerState:
    return PeerState(
        run=order.run_id,
        attempt=order.attempt,
        node=order.node,
        start=order.rejoin_count,
        counter=boot_time_ns(),
        phase=phase,
        **more,
    )


def tell_death(order: Order, token: bytes, reason: str, phase: Phase = Phase.DEAD) -> None:
    """Tell the hub, in the place of a supervisor that was killed, that it is dead.

    Where the hub's own was, nothing listens any more, and that says so.
    """
    hub = order.hub
    if hub is None or hub.node == order.node or not token:
        return
    stop = Reason(ReasonKind.SUPERVISOR, order.node, detail=reason[:MAX_DETAIL])
    with contextlib.suppress(OSError):
        address = (hub.addr, hub.port)
        with socket.create_connection(address, timeout=DEATH_TIMEOUT_S) as connection:
            connection.sendall(seal(token, encode(_state_of(order, phase, stop=stop))))
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(65536):  # until the hub has read it
                pass
