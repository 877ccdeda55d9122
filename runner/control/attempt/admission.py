"""Orders of an attempt: what starts a node, and starts one again that was lost and answers again.

The latter happens in elastic runs. Each try runs in a thread with its own inbox, so that it may
wait for its host. Then its session moves to the inbox of the attempt, which receives an "admitted"
frame.
"""

from __future__ import annotations

import contextlib
import queue
import secrets
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from runner.control.attempt.node import Backoff, connection_problem
from runner.control.code.source import ShippedTasks
from runner.control.rpc.facts import FactsCollector
from runner.control.rpc.session import BoundedInbox, Connector, HostSession, Inbox
from runner.core.errors import NotReady
from runner.core.spec import Node, Spec
from runner.core.wire.codec import Frame, encode
from runner.core.wire.facts import Facts, FactsRequest
from runner.core.wire.order import Order
from runner.core.wire.plan import Plan


class OrderSender:
    """Sends orders, with what every host of the attempt gets besides."""

    def __init__(
        self,
        spec: Spec,
        plan: Plan,
        tasks: ShippedTasks | None,
    ) -> None:
        stands_by = plan.nodes[0].order.hub is not None
        self.standby_orders = {each.node: each.order for each in plan.spares if stands_by}
        self._tasks = tasks
        revealed = {name: secret.reveal() for name, secret in spec.secrets.items()}
        self._data: dict[str, Any] = {"secrets": revealed, "token": secrets.token_hex(16)}

    def send(self, order: Order, session: HostSession, facts: Facts, record: bytes) -> None:
        """Start an order on a host; `record` is the packed record of the whole run."""
        data = {"order": encode(order), "record_bytes": len(record), **self._data}
        payload = record
        if self._tasks and not facts.has_tasks:
            data["tasks"] = self._tasks.header()
            payload += self._tasks.payload
        session.request("start", data, payload)


class NodeAdmission:
    """The nodes that were lost, and the tries to send each its order once more.

    Nothing is planned or pushed again: the run is in its folder. A host whose earlier part has not
    proved its end refuses.
    """

    def __init__(
        self,
        spec: Spec,
        facts_request: Callable[[Node], FactsRequest],
        order_sender: OrderSender,
        record: bytes,
        connector: Connector,
        inbox: Inbox,
    ) -> None:
        self.backoffs: dict[str, Backoff] = {}  # of the nodes that are tried repeatedly
        self._spec = spec
        self._facts_request = facts_request
        self._order_sender = order_sender
        self._record = record
        self._connector = connector
        self._inbox = inbox
        self._last_reasons: dict[str, str] = {}

    def schedule(self, name: str, reason: str) -> None:
        """Try to admit a node from now on."""
        self.backoffs[name] = Backoff(reason, time.monotonic())

    def retry_due(self, now: float) -> None:
        """Start the next try of each node, if it is time."""
        for node in self._spec.nodes:
            if backoff := self.backoffs.get(node.name):
                backoff.start_if_due(now, self._try_admit, node)

    def admit(self, order: Order, session: HostSession, facts: Facts) -> None:
        """Send a node its order once more."""
        del self.backoffs[order.node]
        self._order_sender.send(order, session, facts, self._record)

    def on_failure(self, name: str, reason: str) -> str:
        """Try a node again later that cannot join; return a message, "" if nothing is new."""
        if name in self.backoffs:
            self.backoffs[name].on_failure(reason)
        previous = self._last_reasons.get(name)
        self._last_reasons[name] = reason
        return "" if previous == reason else f"{name} cannot join: {reason}; trying again"

    def _try_admit(self, node: Node, backoff: Backoff) -> None:
        name = node.name
        inbox = BoundedInbox()
        spec = replace(self._spec, nodes=(node,))
        collector = FactsCollector(
            spec, self._connector, inbox, self._facts_request, lambda *_: None
        )
        try:
            facts, problems = collector.collect()
            if problems:
                raise NotReady([*problems.values()])
        except Exception as error:  # noqa: BLE001 (whatever it is, the next try may succeed)
            message = connection_problem(error)
            for opened in collector.sessions.values():
                opened.close()
            if collector.sessions:  # it answers, but cannot join as it is
                failure = {"node": name, "reason": message}
                self._inbox.put((None, Frame("admission_failed", failure)))
            else:
                backoff.on_failure(message)
            return
        session = collector.sessions[name]
        session.redirect(self._inbox)
        with contextlib.suppress(queue.Empty):
            while True:
                self._inbox.put(inbox.get_nowait())
        self._inbox.put((session, Frame("admitted", {"facts": facts[name]})))
