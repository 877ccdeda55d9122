"""The hub: the master's supervisor, to which every other one keeps a connection."""

from __future__ import annotations

import select
import socket
import time
from typing import Any, Dict, List, Optional, Set

from runner.core.protocol.events import Cause
from runner.host.peers.connection import SERVER, Peer, PeerGone
from runner.host.peers.group import APART_S, COME_S, FAREWELL_S, PROVE_S, Connected, beat, stop_word

STRANGERS = 64


class Host(Connected):
    """The hub's end: the master's supervisor."""

    def __init__(self, listener: socket.socket, *args: Any) -> None:
        super().__init__(*args)
        self._listener = listener
        self._began = time.monotonic()
        self._awaited = self._hub.members
        self._missing = {*self._hub.expected}
        self._beat = beat(time.monotonic(), keep=False, still_s=0.0)
        self._moved: Dict[str, float] = {}
        self._members: Dict[str, Peer] = {}
        self._absent: Dict[str, float] = {}
        self._renewed: Set[Peer] = set()
        self._strangers: List[Peer] = []
        self._stopping: Optional[Dict[str, Any]] = None
        listener.setblocking(False)
        listener.listen(256)
        self._watch(listener.fileno(), self._admit)

    def tick(self, heard: float, *, keep: bool, still_s: float) -> Optional[float]:
        """Beat, and see who is silent."""
        now = time.monotonic()
        due = self._due() or keep != self._beat["keep"]  # nobody shall end before it knows
        judge = self._awake.look(now)
        all_still_s = self._still_s(now, still_s)
        self._beat = beat(max(heard, self._reported), keep=keep, still_s=all_still_s)
        for peer in self._members.values():
            if due:
                peer.say(**self._beat)
            peer.flush()
        heard_of = {**self._absent, **{name: peer.heard for name, peer in self._members.items()}}
        for name, since in heard_of.items():
            if judge and now - since > self._hub.lost_s:
                self._lose(name, f"nothing was heard from it for {now - since:.0f} s", since)
        for name in [*self._missing] if judge and now > self._began + COME_S else ():
            self._missing.discard(name)
            self._news.peer_lost(name, f"it did not begin within {COME_S:g} s", now)
        for peer in [each for each in self._strangers if now > each.since + PROVE_S]:
            self._forget(peer)
        return all_still_s

    def _still_s(self, now: float, own_s: float) -> Optional[float]:
        """Return for how long nothing has moved anywhere; who said farewell moves no more."""
        if self._awaited > 0 or self._absent.keys() - set(self._hub.spares):
            return None
        return min(own_s, now - max(self._moved.values(), default=0.0))

    def _lose(self, name: str, reason: str, since: float) -> None:
        self._absent.pop(name, None)
        peer = self._members.get(name)
        if peer is not None:
            peer.say(**stop_word(f"lost {name}: {reason}", Cause.PEER, keep=False))
            self._forget(peer)
        self._gone(name, reason, since)

    def _gone(self, name: str, reason: str, since: float) -> None:
        """A member is gone: the end, unless it stood by, or the run may go on with the others."""
        if name in self._hub.spares:
            return
        nodes = 1 + len({*self._members, *self._absent} - {*self._hub.spares})
        needed = self._hub.least or 1 + self._hub.members
        service = self._order.service
        if service is not None and service.node == name:  # without its etcd no torchrun goes on
            needed = nodes + 1
        if self._stopping or not self._order.restarts or nodes < needed:
            self._news.peer_lost(name, reason, since)
            return
        age = round(time.monotonic() - since, 3)
        for peer in self._members.values():
            peer.say(say="left", peer=name, reason=reason, age=age, nodes=nodes)
        self._moved.pop(name, None)
        self._news.peer_left(name, reason, since, nodes)

    def stop(self, reason: str, cause: Cause, *, keep: bool) -> None:
        """Tell every member, and whoever comes later."""
        self._stopping = stop_word(reason, cause, keep=keep)
        for peer in self._members.values():
            peer.say(**self._stopping)

    @property
    def agreed(self) -> bool:
        """Whether everybody who is to come of itself has heard that all stop."""
        return not (self._stopping and self._missing)

    @property
    def needed(self) -> bool:
        """Whether a member is still at it, or may be about to come."""
        late = time.monotonic() - self._began > APART_S
        members = {*self._members, *self._absent}.difference(self._hub.spares)
        return bool(members) or (self._awaited > 0 and not late)

    def leave(self) -> None:
        """Say farewell, and let the members take it in."""
        self._unwatch(self._listener.fileno())
        self._listener.close()
        for peer in self._members.values():
            peer.say(say="done")
        until = time.monotonic() + FAREWELL_S
        while self._members and time.monotonic() < until:
            for peer in list(self._members.values()):
                peer.flush()
            ready = select.select(list(self._members.values()), [], [], 0.02)[0]
            for peer in ready:
                self._hear(peer, quiet=True)
        for peer in (*self._members.values(), *self._strangers):
            self._part(peer)

    def _admit(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return
        if len(self._strangers) >= STRANGERS:
            connection.close()
            return
        self._strangers.append(self._greet(connection, SERVER, self._hear))

    def _hear(self, peer: Peer, *, quiet: bool = False) -> None:
        try:
            messages = peer.hear()
            for message in messages:
                self._know(peer)
                if message["say"] == "moved" and self._members.get(peer.name) is peer:
                    self._absent[peer.name] = peer.heard
                if message["say"] in ("done", "moved"):
                    self._forget(peer)
                    return
                if message["say"] == "here":
                    still_s = message.get("still")
                    self._moved[peer.name] = time.monotonic() - float(still_s or 0.0)
                if not quiet:
                    self._take(message)
        except PeerGone as gone:
            known = self._members.get(peer.name) is peer
            self._forget(peer)
            if known and peer in self._renewed and time.monotonic() < peer.since + PROVE_S:
                self._absent[peer.name] = peer.heard  # it may not have heard that it came through
            elif known and not quiet:
                reason = f"its supervisor ended without a word ({gone})"
                self._gone(peer.name, reason, time.monotonic())

    def _know(self, peer: Peer) -> None:
        if peer in self._strangers:
            self._strangers.remove(peer)
            self._missing.discard(peer.name)
            before = self._members.get(peer.name)
            if before is not None:
                self._renewed = {each for each in self._renewed if each is not before} | {peer}
                self._forget(before)
            elif self._absent.pop(peer.name, None) is None and peer.name not in self._hub.spares:
                self._awaited -= 1
            self._members[peer.name] = peer
            peer.say(**self._beat)  # at once: now it knows that it has joined
            if self._stopping:
                peer.say(**self._stopping)

    def _forget(self, peer: Peer) -> None:
        if peer in self._strangers:
            self._strangers.remove(peer)
        elif self._members.get(peer.name) is peer:
            del self._members[peer.name]
        else:
            return
        self._part(peer)
