"""Controller lease: unless detached, an attempt stops if none renews it for `disconnect_s`."""

from __future__ import annotations

import time

from runner.core.model.order import Order
from runner.core.protocol.events import Detached
from runner.host.peers.group import PeerGroup
from runner.host.storage.journal import EventLog


class ControllerLease:
    """The lease of one attempt on this host.

    Attributes:
        renewed_at: When an agent on this host renewed it, monotonic.
        detached: Whether no controller is needed any more.
        detach_agreed: Whether the hosts agree on that, so that they may relaunch the run.
    """

    def __init__(self, order: Order, journal: EventLog) -> None:
        self._order, self._journal = order, journal
        self.detached = self.detach_agreed = not order.disconnect_s
        self.renewed_at = self._peer_renewed_at = time.monotonic()

    def renew(self) -> None:
        """Renew the lease: an agent of a controller is here."""
        self.renewed_at = time.monotonic()

    def renew_from_peer(self, renewed_at: float) -> None:
        """Renew the lease by what another host heard."""
        self._peer_renewed_at = max(self._peer_renewed_at, renewed_at)

    @property
    def expiry_reason(self) -> str:
        """Why the attempt must stop for want of a controller, "" if it must not."""
        limit_s = self._order.disconnect_s
        age_s = time.monotonic() - max(self.renewed_at, self._peer_renewed_at)
        expired = not self.detached and age_s > limit_s
        return f"no controller renewed the lease for {limit_s:g} s" if expired else ""

    def request_detach(self, peer_group: PeerGroup, *, joined_hub: bool, stopping: bool) -> None:
        """Detach, as a controller asks, unless the attempt stops already.

        A member asks its hub to confirm: the hub alone knows what came first. Without a hub the
        host detaches by itself; one that never joined the hub takes no part in a relaunch.
        """
        if not stopping and not peer_group.forward_detach():
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
            self._journal.append(Detached())
