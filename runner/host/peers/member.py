"""A member: any other supervisor, with its connection to the hub."""

from __future__ import annotations

import errno
import os
import select
import socket
import time
from typing import Any, Dict, List, Optional

from runner.core.protocol.events import Cause
from runner.host.peers.connection import CLIENT, Peer, PeerGone
from runner.host.peers.group import APART_S, COME_S, FAREWELL_S, PROVE_S, Connected, beat, stop_word

AGAIN_S, MOST_AGAIN_S = 0.1, 2.0
"""The pause between two tries to reach the hub, at first and at most."""

QUICK_S = 1.0
"""How long one try for a new connection may take when the old one fell silent."""


class Member(Connected):
    """The end of every other supervisor."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._hub_peer: Optional[Peer] = None
        self._connecting: Optional[socket.socket] = None
        self._began = time.monotonic()
        self._next_try = 0.0
        self._pause = AGAIN_S
        self._said_apart = False
        self._said_joined = False
        self._left = False
        self._heard = 0.0
        self._old: Optional[Peer] = None  # that fell silent, while another is tried
        self._moved = float("-inf")  # when we told the hub to forget a connection
        self._stopping: Optional[Dict[str, Any]] = None
        self._told_to_stop = False
        self._wishes_keep = self._said_keep = False
        self._all_moved: Optional[float] = None

    def tick(self, heard: float, *, keep: bool, still_s: float) -> Optional[float]:
        """Beat, reach for the hub, and see whether it is silent."""
        if self._left:
            return None
        judge = self._awake.look(time.monotonic())
        now, peer = time.monotonic(), self._hub_peer
        keep = keep or self._wishes_keep
        due = self._due() or keep != self._said_keep  # the hub shall know it before the end
        self._said_keep = keep
        for each in self._peers:
            if due:
                each.say(**beat(heard, keep=keep, still_s=still_s))
            each.flush()
            if each.name:
                self._heard = max(self._heard, each.heard)
        silence = now - self._heard
        lost = self._lost(now) if judge else ""
        if lost:
            self._lose(lost, self._heard or now)
        elif peer is None and self._old is not None and silence < self._doubt_s:
            self._go_back()
        elif peer is None:
            self._reach()
        elif judge and peer.name and silence > self._doubt_s:
            # After some lost packets TCP waits for longer than we do; a new connection does not.
            self._old, self._hub_peer, self._next_try = peer, None, now
        elif judge and not peer.name and now - peer.since > self._patience_s:
            self._retry("it does not know the run's token")
        return self._all_still_s(still_s)

    def _lost(self, now: float) -> str:
        """Why the hub is given up, "" while it is not; a launch watches over its start itself."""
        silence = now - self._heard
        if self._said_joined:
            silent = silence > self._hub.lost_s
            return f"nothing was heard from it for {silence:.0f} s" if silent else ""
        late = bool(self._hub.expected) and now > self._began + COME_S
        return f"it could not be reached within {COME_S:g} s" if late else ""

    def _all_still_s(self, own_s: float) -> Optional[float]:
        if self._all_moved is None:
            return None
        return min(own_s, time.monotonic() - self._all_moved)

    @property
    def _peers(self) -> List[Peer]:
        return [each for each in (self._hub_peer, self._old) if each is not None]

    def _go_back(self) -> None:
        """The old connection speaks again, before there is another."""
        self._drop_try()
        self._hub_peer, self._old = self._old, None

    def _drop_try(self) -> None:
        if self._connecting is not None:
            self._connecting.close()
            self._connecting = None

    @property
    def _doubt_s(self) -> float:
        return max(2.5 * self._beat_s, self._hub.lost_s / 3)

    @property
    def _patience_s(self) -> float:
        return QUICK_S if self._said_joined else PROVE_S

    def stop(self, reason: str, cause: Cause, *, keep: bool) -> None:
        """Tell the hub, which tells the others, and us again."""
        self._stopping = stop_word(reason, cause, keep=keep or self._wishes_keep)
        for peer in self._peers:
            peer.say(**self._stopping)

    def pass_on_keep(self) -> bool:
        """Have the hub say it, if there is one; of several it alone knows what came first."""
        if self._left or not self._said_joined:
            return False
        self._wishes_keep = True
        return True

    @property
    def agreed(self) -> bool:
        """Whether the hub has said that all stop, or will not.

        Before we have met it there is nothing to hear, but that makes us one of those who decide.
        """
        outside = not self._said_joined and (self._said_apart or not self._said_keep)
        return self._told_to_stop or self._left or outside

    @property
    def over(self) -> bool:
        """Whether the hub has said farewell."""
        return self._left

    def leave(self) -> None:
        """Say farewell; what the others must know is brought to them first, if that can be."""
        if self._left:
            return
        until = time.monotonic() + FAREWELL_S
        while self._stopping and self._untold() and time.monotonic() < until:
            if self._hub_peer is None:
                self._reach()
            else:
                self._hear(self._hub_peer)
            time.sleep(0.02)
        self._left = True
        self._drop_try()
        peers = self._peers
        self._hub_peer = self._old = None
        for peer in peers:
            peer.say(say="done")
            self._part(peer, FAREWELL_S)

    def _untold(self) -> bool:
        return not self._left and (self._hub_peer is None or not self._hub_peer.ready)

    def _reach(self) -> None:
        now = time.monotonic()
        if self._connecting is None:
            if now >= self._next_try:
                self._connect()
            return
        _, writable, _ = select.select([], [self._connecting], [], 0)
        if not writable:
            if now > self._next_try + self._patience_s:
                self._retry("it does not answer")
            return
        failed = self._connecting.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if failed == errno.ECONNREFUSED and self._said_joined:
            self._lose("its supervisor is gone", now)
            return
        if failed:
            self._retry(os.strerror(failed))
            return
        connection, self._connecting = self._connecting, None
        self._hub_peer = self._greet(connection, CLIENT, self._hear)
        self._next_beat = 0.0  # our first word, by which the hub knows us
        if self._stopping:
            self._hub_peer.say(**self._stopping)

    def _connect(self) -> None:
        self._next_try = time.monotonic()
        try:
            found = socket.getaddrinfo(
                *(self._hub.addr, self._hub.port, 0, socket.SOCK_STREAM),
                flags=socket.AI_NUMERICHOST,  # a resolver may take half a minute
            )
            family, _, _, _, address = found[0]
            self._connecting = socket.socket(family, socket.SOCK_STREAM)
            self._connecting.setblocking(False)
            code = self._connecting.connect_ex(address)
        except OSError as error:
            self._retry(str(error.strerror or error))
            return
        if code not in (0, errno.EINPROGRESS):
            self._retry(os.strerror(code))

    def _retry(self, why: str) -> None:
        """Try again in a while; say once that it takes long."""
        now = time.monotonic()
        self._drop_try()
        if self._hub_peer is not None:
            self._hub_peer.say(say="moved")  # it may have heard us, and shall not miss us
            self._moved = now
            self._part(self._hub_peer)
            self._hub_peer = None
        self._next_try = now + self._pause
        self._pause = AGAIN_S if self._said_joined else min(MOST_AGAIN_S, 2 * self._pause)
        late = now > self._began + APART_S
        if late and not self._said_apart and not self._said_joined:
            self._said_apart = True
            hub = self._hub
            self._news.apart(f"{hub.node} at {hub.addr} port {hub.port}: {why}")

    def _hear(self, peer: Peer) -> None:
        try:
            for message in peer.hear():
                if not self._said_joined:
                    self._said_joined = True
                    self._news.joined()
                if message["say"] == "done":
                    self._part_with_all()
                    return
                if message["say"] == "here":
                    still_s = message.get("still")
                    moved = None if still_s is None else time.monotonic() - float(still_s)
                    self._all_moved = moved
                self._told_to_stop = self._told_to_stop or message["say"] == "stop"
                self._take(message)
                if peer is self._hub_peer and self._old is not None:
                    self._part(self._old)  # the hub has done so with its end
                    self._old = None
        except PeerGone as gone:
            if peer is self._old:  # there is another, or a try for one will show how it is
                self._part(peer)
                self._old = None
            if self._hub_peer is not peer:
                return
            if peer.name and time.monotonic() - self._moved > self._hub.lost_s:
                self._lose(f"its supervisor ended without a word ({gone})", time.monotonic())
            else:
                self._retry(str(gone))

    def _part_with_all(self) -> None:
        self._left = True
        self._drop_try()
        for peer in self._peers:
            self._part(peer)
        self._hub_peer = self._old = None
        if self._wishes_keep and not self._told_to_stop:  # the hub will not answer any more
            self._news.controller_heard(self._reported, keep=True)

    def _lose(self, reason: str, since: float) -> None:
        for peer in self._peers:
            peer.say(**stop_word(f"lost {self._hub.node}: {reason}", Cause.PEER, keep=False))
        self._part_with_all()
        if self._order.restarts and not self._hub.vital and self._said_joined:
            self._news.apart(f"{self._hub.node} any more: {reason}")
            self._news.peer_left(self._hub.node, reason, since, 0)
        else:
            self._news.peer_lost(self._hub.node, reason, since)
