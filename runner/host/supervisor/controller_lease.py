"""Whether an attempt needs a controller on this host, and when one was heard last."""

from __future__ import annotations

import time

from runner.core.model.order import Order
from runner.core.protocol.events import Kept
from runner.host.peers.group import Circle
from runner.host.storage.run_folder import Journal


class Attendance:
    """Who attends to the attempt, and that nobody has to any more once it is kept.

    Attributes:
        heard: When a link of ours spoke last, by our monotonic clock.
        needless: Whether no controller is needed any more.
        agreed: Whether the hosts are of one mind in that, so that they decide what follows.
    """

    def __init__(self, order: Order, journal: Journal) -> None:
        self._order, self._journal = order, journal
        self.needless = self.agreed = not order.disconnect_s
        self.heard = self._heard_elsewhere = time.monotonic()

    def hear(self) -> None:
        """One speaks to us."""
        self.heard = time.monotonic()

    def hear_of(self, when: float) -> None:
        """One spoke to another host."""
        self._heard_elsewhere = max(self._heard_elsewhere, when)

    @property
    def missing(self) -> str:
        """Why the attempt is to end for want of a controller, "" where it is not."""
        limit_s = self._order.disconnect_s
        silence = time.monotonic() - max(self.heard, self._heard_elsewhere)
        over = not self.needless and silence > limit_s
        return f"no controller was heard for {limit_s:g} s" if over else ""

    def asked_to_keep(self, circle: Circle, *, met: bool, stopping: bool) -> None:
        """A controller says that none is needed from now on; what stops already is still its own.

        In touch with the hub we have that say it, which alone knows what came first. Without it we
        keep what is ours; who has never met it has no part in what the hosts decide.
        """
        if not stopping and not circle.pass_on_keep():
            self._keep(agreed=met or self._leads)

    def told_to_keep(self, *, stopping: bool) -> None:
        """Another host says so: from the hub's mouth it came before the end."""
        if not (stopping and self._leads):
            self._keep(agreed=True)

    @property
    def _leads(self) -> bool:
        hub = self._order.hub
        return hub is None or hub.node == self._order.node

    def _keep(self, *, agreed: bool) -> None:
        self.agreed = self.agreed or agreed
        if not self.needless:
            self.needless = True
            self._journal.append(Kept())
