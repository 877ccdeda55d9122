"""Controller lease: when controllers were heard, by which the hosts know what is up to them."""

from __future__ import annotations

import time
from typing import Optional

from runner.core.wire import events
from runner.core.wire.order import Order
from runner.core.wire.states import unattended_reason
from runner.host.peers.state import LastHeard
from runner.host.storage.run_folder import EventLog

UNATTENDED_S = 10.0  # agents renew the lease of a controller more often
LAUNCH_GONE_S = 30.0  # of silence, after which the hub decides in the place of a launch


class ControllerLease:
    """When controllers were heard, by which the hosts know what is up to them.

    With `disconnect_s` an attempt stops that time after the last controller, unless it was
    detached. Whoever launched it decides about a relaunch and tells of the end. Once it was
    detached the hosts do; else when that launch has been silent for `LAUNCH_GONE_S`, and they tell
    after `UNATTENDED_S`.

    Attributes:
        heard: When agents on this host renewed the lease.
        heard_anywhere: When agents did on any host.
    """

    def __init__(self, order: Order, journal: EventLog) -> None:
        self._order = order
        self._journal = journal
        self.detached = order.detached
        now = time.monotonic()
        self.heard = LastHeard(now, now)
        self.heard_anywhere = self.heard

    def renew(self, *, by_launch: bool = False) -> None:
        """Renew the lease: an agent of a controller is here, perhaps that of the launch."""
        now = time.monotonic()
        self.heard = LastHeard(now, now if by_launch else self.heard.launch)
        self.renew_from_peer(self.heard)

    def renew_from_peer(self, heard: LastHeard) -> None:
        """Renew the lease by what another host heard."""
        self.heard_anywhere = self.heard_anywhere.merged(heard)

    @property
    def hosts_decide(self) -> bool:
        """Whether a relaunch is up to the hosts: no launch is there."""
        return self.detached or time.monotonic() - self.heard_anywhere.launch > LAUNCH_GONE_S

    @property
    def is_unattended(self) -> bool:
        """Whether notifications are up to the hosts."""
        return self.detached or time.monotonic() - self.heard_anywhere.launch > UNATTENDED_S

    @property
    def expiry_reason(self) -> str:
        """Why the attempt must end for want of a controller, "" if it need not."""
        limit_s = self._order.disconnect_s
        expired = limit_s and not self.detached and self._age_s > limit_s
        return unattended_reason(limit_s) if expired else ""

    @property
    def unattended_left_s(self) -> Optional[float]:
        """When the attempt ends for want of a controller, None while there may be one."""
        limit_s = self._order.disconnect_s
        unattended = limit_s and not self.detached and self._age_s > UNATTENDED_S
        return limit_s - self._age_s if unattended else None

    @property
    def _age_s(self) -> float:
        return time.monotonic() - self.heard_anywhere.controller

    def confirm_detach(self, *, stopping: bool) -> None:
        """Detach, as another host says; the hub accepts that only before it stops."""
        if not (stopping and self.is_hub):
            self.detach()

    @property
    def is_hub(self) -> bool:
        """Whether no other host decides."""
        hub = self._order.hub
        return hub is None or hub.node == self._order.node

    def detach(self) -> None:
        """Need no controller from now on."""
        if not self.detached:
            self.detached = True
            if not self._journal.state.is_terminal:  # a record ends with its end
                self._journal.append(events.Detached())
