"""What hosts are sent so that they begin their part of an attempt."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from runner.control.rpc.bootstrap import Tasks
from runner.control.rpc.session import Session
from runner.core.codec import encode
from runner.core.model.facts import Facts
from runner.core.model.order import Order
from runner.core.protocol.frames import Frame
from runner.core.relaunch.handover import Handover
from runner.core.secret import Secret


class Orders:
    """What goes with the order of every host.

    Args:
        secrets: The task's secrets by name.
        token: The secret by which the supervisors know each other.
        tasks: The shipped tasks, if the run is of one.
        handover: What the hosts need to start the run once more by themselves; None if they do not.
        standby: The orders of the spares that stand by for that.
    """

    def __init__(
        self,
        secrets: Mapping[str, Secret],
        token: str,
        tasks: Tasks | None = None,
        handover: Handover | None = None,
        standby: Mapping[str, Order] = MappingProxyType({}),
    ) -> None:
        self.standby = standby
        self._tasks = tasks
        revealed = {name: secret.reveal() for name, secret in secrets.items()}
        self._data: dict[str, Any] = {"secrets": revealed, "token": token}
        if handover is not None:
            self._data["handover"] = encode(handover)

    def send(self, order: Order, session: Session, facts: Facts, record: bytes) -> None:
        """Have a host begin; `record` is what it is to have on record of the whole run, packed."""
        session.share(Frame("record", {}, record).head(), record)
        missing = self._tasks if self._tasks and not facts.tasks_held else None
        data = {"order": encode(order), **self._data}
        if missing:
            data["tasks"] = missing.header()
        session.request("go", data, missing.payload if missing else b"")
