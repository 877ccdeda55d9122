"""What hosts are sent so that they begin their part of an attempt."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from runner.control.code.shipped_tasks import ShippedTasks
from runner.control.rpc.session import HostSession
from runner.core.codec import encode
from runner.core.model.facts import Facts
from runner.core.model.order import Order
from runner.core.protocol.frames import Frame
from runner.core.relaunch.handover import RelaunchContext
from runner.core.secret import Secret


class OrderSender:
    """What goes with the order of every host.

    Args:
        secrets: The task's secrets by name.
        token: The secret by which the supervisors know each other.
        tasks: The shipped tasks, if the run is of one.
        handover: What the hosts need to start the run once more by themselves; None if they do not.
        standby_orders: The orders of the spares that stand by for that.
    """

    def __init__(
        self,
        secrets: Mapping[str, Secret],
        token: str,
        tasks: ShippedTasks | None = None,
        relaunch_context: RelaunchContext | None = None,
        standby_orders: Mapping[str, Order] = MappingProxyType({}),
    ) -> None:
        self.standby_orders = standby_orders
        self._tasks = tasks
        revealed = {name: secret.reveal() for name, secret in secrets.items()}
        self._data: dict[str, Any] = {"secrets": revealed, "token": token}
        if relaunch_context is not None:
            self._data["handover"] = encode(relaunch_context)

    def send(self, order: Order, session: HostSession, facts: Facts, record: bytes) -> None:
        """Have a host begin; `record` is what it is to have on record of the whole run, packed."""
        session.send_shared(Frame("record", {}, record).header_bytes(), record)
        missing_tasks = self._tasks if self._tasks and not facts.has_tasks else None
        data = {"order": encode(order), **self._data}
        if missing_tasks:
            data["tasks"] = missing_tasks.header()
        session.request("start", data, missing_tasks.payload if missing_tasks else b"")
