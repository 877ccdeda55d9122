"""Whether an attempt needs a controller on this host, and when one was heard last."""

from __future__ import annotations

import time

from runner.core.model.order import Order
from runner.core.protocol.events import Detached
from runner.host.peers.group import PeerGroup
from runner.host.storage.journal import EventLog


class ControllerLease:
    """Who attends to the attempt, and that nobody has to any more once it is kept.

    Attributes:
        renewed_at: When a link of ours spoke last, by our monotonic clock.
        detached: Whether no controller is needed any more.
        detach_agreed: Whether the hosts are of one mind in that, so that they decide what follows.
    """

    def __init__(self, order: Order, journal: EventLog) -> None:
        self._order, self._journal = order, journal
        self.detached = self.detach_agreed = not order.disconnect_s
        self.renewed_at = self._peer_renewed_at = time.monotonic()

    def renew(self) -> None:
        """One speaks to us."""
        self.renewed_at = time.monotonic()

    def renew_from_peer(self, renewed_at: float) -> None:
        """One spoke to another host."""
        self._peer_renewed_at = max(self._peer_renewed_at, renewed_at)

    @property
    def expiry_reason(self) -> str:
        """Why the attempt is to end for want of a controller, "" where it is not."""
        limit_s = self._order.disconnect_s
        age_s = time.monotonic() - max(self.renewed_at, self._peer_renewed_at)
        expired = not self.detached and age_s > limit_s
        return f"no controller was heard for {limit_s:g} s" if expired else ""

    def request_detach(self, peer_group: PeerGroup, *, joined_hub: bool, stopping: bool) -> None:
        """A controller says that none is needed from now on; what stops already is still its own.

        In touch with the hub we have that say it, which alone knows what came first. Without it we
        keep what is ours; who has never met it has no part in what the hosts decide.
        """
        if not stopping and not peer_group.forward_detach():
            self._detach(agreed=joined_hub or self._is_hub)

    def confirm_detach(self, *, stopping: bool) -> None:
        """Another host says so: from the hub's mouth it came before the end."""
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
