"""Peer exchange of a supervisor: keeps the record of what the others say, and acts on it."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from typing import Any, Callable, Dict, Optional, Set

from runner.core.wire import events
from runner.core.wire.states import Reason, ReasonKind
from runner.core.wire.timing import FailureDetector
from runner.host.peers.fold import HubFold, PeerObserver
from runner.host.peers.group import PeerGroup
from runner.host.peers.links import MAX_LINE, Link
from runner.host.peers.state import LastHeard
from runner.host.process.event_loop import EventLoop
from runner.host.storage import run_owner
from runner.host.storage.run_folder import EventLog
from runner.host.supervisor.attempt import ControllerLease, SupervisorArgs
from runner.host.supervisor.notifier import Notifier
from runner.host.supervisor.stop_ladder import StopLadder


class PeerExchange(PeerObserver):
    """What a supervisor does about the others of its `group`, None if it is alone."""

    def __init__(
        self,
        args: SupervisorArgs,
        journal: EventLog,
        ladder: StopLadder,
        stop: Callable[[Reason], None],
        restart_ranks: Callable[[int], None],
    ) -> None:
        self._args = args
        order = args.order
        self.notifier = Notifier(args.folder, order, args.environ)
        self.lease = ControllerLease(order, journal)
        self.group: Optional[PeerGroup] = None
        self.joined_hub = False
        self._order = order
        self._journal = journal
        self._ladder = ladder
        self._stop = stop
        self._restart_ranks = restart_ranks
        self._pauses = FailureDetector()
        self._wants_detach = False

    def join(self, listener: Optional[socket.socket], loop: EventLoop) -> None:
        """Keep in touch with the others from now on."""
        args = self._args
        hub = args.order.hub
        if hub is None or not args.token:
            return
        is_hub = hub.node == args.order.node
        if is_hub and listener is None:
            return
        own = listener if is_hub else None
        try:
            self.group = PeerGroup(args.order, hub, args.token, loop, self, own, args.upcoming)
        except OSError as error:  # something else has taken the port meanwhile
            self.on_hub_unreachable(f"its own port {hub.port}: {error.strerror}")

    @property
    def is_stopping(self) -> bool:
        """Whether this host stops."""
        return self._ladder.is_stopping

    def tick(self, stalled_s: float) -> Optional[float]:
        """Exchange states; return for how long nothing has moved on any host."""
        run_stalled_s: Optional[float] = stalled_s
        group = self.group
        if group is not None:
            lease = self.lease
            detached = lease.detached or self._wants_detach
            heard = lease.heard_anywhere if lease.is_hub else lease.heard
            run_stalled_s = group.tick(heard, detached=detached, stalled_s=stalled_s)
            if group.fold.hub_finished and self._wants_detach and not self.is_stopping:
                lease.detach()  # the hub can decide nothing any more
        may_tell = self._is_teller and not self.is_stopping
        self.notifier.watch(run_stalled_s, may_tell=may_tell)
        return run_stalled_s

    @property
    def _is_teller(self) -> bool:
        """Whether this host tells of the run: it is the first node, and no launch does."""
        return self.lease.is_unattended and self._order.notify is not None

    def tell_end(self, end: events.Ended) -> None:
        """Tell of the end of the run, if that is up to this host."""
        if self._is_teller:
            self.notifier.tell_end(end, self._ladder)

    def stop(self, reason: Reason) -> None:
        """Tell the others to stop."""
        if self.group is not None:
            self.group.stop(reason)

    def leave(self) -> None:
        """Say that this part has ended."""
        if self.group is not None:
            self.group.leave()
            self.group = None

    def detach(self) -> None:
        """Do as a controller says that is not needed any more, unless the attempt stops already.

        A member asks its hub: that alone knows what came first.
        """
        group = self.group
        if self.is_stopping:
            return
        if self.joined_hub and group is not None and not group.fold.hub_finished:
            self._wants_detach = True
        else:
            self.lease.detach()

    def check_lease(self) -> None:
        """Stop for want of a controller; not right after a pause of our own."""
        if self._pauses.check(time.monotonic()) and self.lease.has_expired:
            detail = f"{self._order.disconnect_s:g} s"
            self._stop(Reason(ReasonKind.UNATTENDED, self._order.node, detail=detail))

    def on_peer_stop(self, reason: Reason) -> None:
        """Stop with the others."""
        self._stop(reason.as_told_to(self._order.node))

    def on_peer_lost(self, peer: str, reason: str, last_seen: float) -> None:
        """Stop, since a node is lost."""
        lost = events.PeerLost(peer, reason, silence_s=time.monotonic() - last_seen)
        self._journal.append(lost, mono=last_seen)
        self._stop(Reason(ReasonKind.LOST, peer, detail=reason))

    def on_peer_departed(self, peer: str, reason: str, last_seen: float, node_count: int) -> None:
        """Continue without the node: end ranks that may wait for it; torch restarts them."""
        if self.is_stopping:
            return
        if self.group is not None and isinstance(self.group.fold, HubFold):
            self.group.fold.depart(peer, reason, last_seen, node_count)
        silence_s = time.monotonic() - last_seen
        left = events.PeerDeparted(peer, reason, node_count, silence_s=silence_s)
        self._journal.append(left, mono=last_seen)
        self._restart_ranks(node_count)

    def on_hub_joined(self) -> None:
        """Record that the controller need not watch over this host any more."""
        self.joined_hub = True
        self._journal.append(events.HubJoined())

    def on_hub_unreachable(self, reason: str) -> None:
        """Record that it must; a spare stops, since it would not hear of the end."""
        self._journal.append(events.HubUnreachable(reason))
        if self._order.is_standby:
            detail = f"cannot reach {reason}"
            self._stop(Reason(ReasonKind.HOST, self._order.node, detail=detail))

    def on_lease_renewed(self, heard: LastHeard, *, detached: bool) -> None:
        """Renew the lease by what another supervisor heard."""
        self.lease.renew_from_peer(heard)
        if detached:
            self.lease.confirm_detach(stopping=self._ladder.is_stopping)


class ControlSocket:
    """The run's socket: agents of this user connect to it, and send commands as lines of JSON."""

    def __init__(
        self,
        listener: socket.socket,
        loop: EventLoop,
        on_command: Callable[[Dict[str, Any]], Optional[Dict[str, Any]]],
    ) -> None:
        """Take commands from now on; `on_command` returns what to answer, if anything."""
        self._listener = listener
        self._loop = loop
        self._on_command = on_command
        self._links: Set[Link] = set()
        loop.add_reader(listener.fileno(), self._accept)

    def close(self) -> None:
        """Close the connections; the socket itself is the run's, and may have a next attempt."""
        self._loop.remove_reader(self._listener.fileno())
        for link in [*self._links]:
            self._drop(link)

    def _accept(self) -> None:
        connection = self._loop.accept(self._listener)
        if connection is None:
            return
        if run_owner.peer_uid(connection) != os.getuid():
            connection.close()
            return

        def take(line: bytes) -> str:
            with contextlib.suppress(ValueError, KeyError, TypeError):  # a malformed one
                if answer := self._on_command(json.loads(line)):
                    link.send(json.dumps(answer).encode() + b"\n")
            return ""

        def receive() -> None:
            link.receive()
            if link.error is not None:
                self._drop(link)

        link = Link(connection, MAX_LINE, take)
        self._links.add(link)
        self._loop.add_reader(link.fileno(), receive)

    def _drop(self, link: Link) -> None:
        self._links.discard(link)
        self._loop.remove_reader(link.fileno())
        link.close()
