"""Start of an attempt on a host: send the order, the secrets and the record of the run."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from runner.control.code.source import ShippedTasks
from runner.control.rpc.session import HostSession
from runner.core.codec import encode
from runner.core.model.facts import Facts
from runner.core.model.plan import Order
from runner.core.model.spec import Secret
from runner.core.protocol.frames import Frame
from runner.core.relaunch.handover import RelaunchContext


class OrderSender:
    """Sends orders, with what every host of the attempt gets besides."""

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
        """Start an order on a host; `record` is the packed record of the whole run."""
        session.send(Frame("record", {}, record).header_bytes(), record)
        data, payload = {"order": encode(order), **self._data}, b""
        if self._tasks and not facts.has_tasks:
            data["tasks"], payload = self._tasks.header(), self._tasks.payload
        session.request("start", data, payload)
