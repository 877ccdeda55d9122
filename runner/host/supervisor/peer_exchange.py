"""Peer exchange of a supervisor: what the supervisors of one attempt hear from each other.

Every supervisor keeps one connection to the hub, that of the master node. One that closes it
without a goodbye is dead, one that is silent for `lost_s` is lost; either ends the attempt
everywhere, with or without a controller. Nothing here blocks, and nothing listens once the run is
over.
"""

from __future__ import annotations

import functools
import socket
import time
from typing import Callable, Optional, Set, Union

from runner.core.failure_detector import FailureDetector
from runner.core.model.order import Order
from runner.core.protocol import events
from runner.core.protocol.events import StopCause
from runner.host.peers.election import LeaderElection
from runner.host.peers.hub import HubServer, PeerObserver
from runner.host.peers.member import HubClient
from runner.host.peers.messages import LastHeard
from runner.host.process.event_loop import EventLoop
from runner.host.storage.run_folder import EventLog
from runner.host.supervisor.attempt import SupervisorArgs
from runner.host.supervisor.notifier import Notifier
from runner.host.supervisor.stop_ladder import StopLadder

UNATTENDED_S = 10.0  # agents renew the lease of a controller more often

PeerGroup = Union[HubServer, HubClient]


class PeerExchange(PeerObserver):
    """Keeps the record of what the peers say, and acts on it; alone it has no `group`."""

    def __init__(
        self,
        args: SupervisorArgs,
        journal: EventLog,
        ladder: StopLadder,
        stop: Callable[[str, StopCause], None],
        restart_ranks: Callable[[int], None],
    ) -> None:
        self._args = args
        order = args.order
        self.notifier = Notifier(args.folder, order, args.environ)
        self.lease = ControllerLease(order, journal)
        self.group: Optional[PeerGroup] = None
        self.lost_nodes: Set[str] = set()
        self.joined_hub = False
        self._order = order
        self._journal = journal
        self._ladder = ladder
        self._stop = stop
        self._restart_ranks = restart_ranks
        self._pauses = FailureDetector()

    def join(self, listener: Optional[socket.socket], token: bytes, loop: EventLoop) -> None:
        """Keep in touch with the others from now on."""
        self.group = join_peers(self._order, listener, token, loop, self)

    def tick(self, stalled_s: float) -> Optional[float]:
        """Exchange heartbeats; return for how long nothing has moved on any host."""
        lease = self.lease
        run_stalled_s = None if self.group else stalled_s
        if self.group is not None:
            tick = functools.partial(self.group.tick, lease.heard, detached=lease.detached)
            run_stalled_s = tick(stalled_s=stalled_s)
        may_tell = self._is_teller and not self._ladder.is_stopping
        notifier = self.notifier
        notifier.guard(functools.partial(notifier.watch, run_stalled_s, may_tell=may_tell))
        return run_stalled_s

    @property
    def _is_teller(self) -> bool:
        """Whether this host tells of the run: it is the first node, and no launch does."""
        return self.lease.hosts_decide and self._order.notify is not None

    def tell_outcome(self, end: events.Ended, election: Optional[LeaderElection]) -> None:
        """Tell of the end of the run, or of its next attempt, if that is up to this host."""
        notifier = self.notifier
        tell = functools.partial(notifier.tell_outcome, self._args, end, self._ladder, election)
        notifier.guard(functools.partial(tell, is_teller=self._is_teller))

    def stop(self, reason: str, cause: StopCause) -> None:
        """Tell the others to stop."""
        if self.group is not None:
            self.group.stop(reason, cause, detached=self.lease.detached)

    def leave(self) -> None:
        """Say goodbye."""
        if self.group is not None:
            self.group.shut_down()
            self.group = None

    def detach(self) -> None:
        """Do as a controller says that is not needed any more."""
        joined_hub = self.joined_hub
        stopping = self._ladder.is_stopping
        self.lease.request_detach(self.group, joined_hub=joined_hub, stopping=stopping)

    def check_lease(self) -> None:
        """Stop for want of a controller; not right after a pause of our own."""
        reason = self.lease.expiry_reason
        if self._pauses.check(time.monotonic()) and reason:
            self._stop(reason, StopCause.LOCAL)

    def on_peer_stop(self, reason: str, cause: StopCause) -> None:
        """Stop with the others."""
        self._stop(reason, cause)

    def on_peer_lost(self, peer: str, reason: str, last_seen: float) -> None:
        """Stop, since a node is lost."""
        self.lost_nodes.add(peer)
        lost = events.PeerLost(peer, reason, silence_s=time.monotonic() - last_seen)
        self._journal.append(lost, mono=last_seen)
        self._stop(events.loss_reason(peer, reason), StopCause.PEER)

    def on_peer_departed(self, peer: str, reason: str, last_seen: float, node_count: int) -> None:
        """Continue without the node: end ranks that may wait for it; torch restarts them."""
        if self._ladder.is_stopping:
            return
        self.lost_nodes.add(peer)
        if isinstance(self.group, HubServer):
            self.group.await_no_longer(peer)
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
            self._stop(f"cannot reach {reason}", StopCause.LOCAL)

    def on_lease_renewed(self, heard: LastHeard, *, detached: bool) -> None:
        """Renew the lease by what another supervisor heard."""
        self.lease.renew_from_peer(heard)
        if detached:
            self.lease.confirm_detach(stopping=self._ladder.is_stopping)


def join_peers(
    order: Order,
    listener: Optional[socket.socket],
    token: bytes,
    loop: EventLoop,
    observer: PeerObserver,
) -> Optional[PeerGroup]:
    """Return the part of this order's supervisor: hub or member; None if it is alone."""
    hub = order.hub
    if hub is None or not token:
        return None
    if hub.node != order.node:
        return HubClient(order, hub, token, loop, observer)
    if listener is None:
        return None
    try:
        return HubServer(listener, order, hub, token, loop, observer)
    except OSError as error:  # something else has taken the port meanwhile
        observer.on_hub_unreachable(f"its own port {hub.port}: {error.strerror}")
        return None


class ControllerLease:
    """When controllers were heard, by which the hosts know what is up to them.

    With `disconnect_s` an attempt stops that time after the last controller, unless it was
    detached. Whoever launched it decides about a relaunch and tells of the end, and so do the hosts
    once that launch is silent for `UNATTENDED_S` or they agree on the detach (`detach_agreed`).
    `heard` is when agents on this host renewed the lease.
    """

    def __init__(self, order: Order, journal: EventLog) -> None:
        self._order = order
        self._journal = journal
        self.detached = self.detach_agreed = order.detached
        now = time.monotonic()
        self.heard = self._peers_heard = LastHeard(now, now)

    def renew(self, *, by_launch: bool = False) -> None:
        """Renew the lease: an agent of a controller is here, perhaps that of the launch."""
        now = time.monotonic()
        self.heard = LastHeard(now, now if by_launch else self.heard.launch)

    def renew_from_peer(self, heard: LastHeard) -> None:
        """Renew the lease by what another host heard."""
        self._peers_heard = self._peers_heard.merged(heard)

    @property
    def hosts_decide(self) -> bool:
        """Whether relaunches and notifications are up to the hosts: no launch is there."""
        return self.detach_agreed or time.monotonic() - self.launch_heard_at > UNATTENDED_S

    @property
    def launch_heard_at(self) -> float:
        """When the launch was last heard, on any host."""
        return self.heard.merged(self._peers_heard).launch

    @property
    def expiry_reason(self) -> str:
        """Why the attempt must end for want of a controller, "" if it need not."""
        limit_s = self._order.disconnect_s
        expired = limit_s and not self.detached and self._age_s > limit_s
        return events.unattended_reason(limit_s) if expired else ""

    @property
    def unattended_left_s(self) -> Optional[float]:
        """When the attempt ends for want of a controller, None while there may be one."""
        limit_s = self._order.disconnect_s
        unattended = limit_s and not self.detached and self._age_s > UNATTENDED_S
        return limit_s - self._age_s if unattended else None

    @property
    def _age_s(self) -> float:
        return time.monotonic() - self.heard.merged(self._peers_heard).controller

    def request_detach(
        self, group: Optional[PeerGroup], *, joined_hub: bool, stopping: bool
    ) -> None:
        """Detach, as a controller asks, unless the attempt stops already.

        A member asks its hub to confirm: the hub alone knows what came first. Without a hub the
        host detaches by itself; one that never joined the hub takes no part in a relaunch.
        """
        if not stopping and not (group is not None and group.forward_detach()):
            self._detach(agreed=joined_hub or self._is_hub)

    def confirm_detach(self, *, stopping: bool) -> None:
        """Detach, as another host says; the hub accepts that only before it stops."""
        if not (stopping and self._is_hub):
            self._detach(agreed=True)

    @property
    def _is_hub(self) -> bool:
        hub = self._order.hub
        return hub is None or hub.node == self._order.node

    def _detach(self, *, agreed: bool) -> None:
        self.detach_agreed = self.detach_agreed or agreed
        if not self.detached:
            self.detached = True
            if not self._journal.state.is_terminal:  # a record ends with its end
                self._journal.append(events.Detached())
