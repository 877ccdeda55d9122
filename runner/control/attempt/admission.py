"""Admission to an attempt: the order that starts a node, and the tries of nodes that come later.

Those are connected, checked and sent code as at a launch. Each try runs in a thread with its own
inbox, so that it may wait for its host. When the node is ready, its session moves to the inbox of
the attempt, which receives an "admitted" frame.
"""

from __future__ import annotations

import contextlib
import queue
import secrets
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from runner.control.attempt.node import Backoff, connection_problem
from runner.control.code.code_store import PushSource
from runner.control.code.push import CodePush
from runner.control.code.source import ShippedTasks
from runner.control.rpc.facts import FactsCollector
from runner.control.rpc.session import BoundedInbox, Connector, HostSession, Inbox
from runner.core.codec import encode
from runner.core.errors import NotReady, Problem
from runner.core.model.facts import Facts, FactsRequest
from runner.core.model.order import Order
from runner.core.model.plan import Plan
from runner.core.protocol.frames import Frame
from runner.core.spec import Node, Spec


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
        session.send(Frame("record", {}, record).header_bytes(), record)
        data = {"order": encode(order), **self._data}
        payload = b""
        if self._tasks and not facts.has_tasks:
            data["tasks"] = self._tasks.header()
            payload = self._tasks.payload
        session.request("start", data, payload)


@dataclass(frozen=True)
class AdmissionHooks:
    """What the launch contributes to the admission of a node."""

    spec: Spec  # with every node that may take part
    request: Callable[[Node], FactsRequest]
    validate: Callable[[Node, Facts], list[Problem]]
    snapshot_if_needed: Callable[[dict[str, Facts]], PushSource | None]  # what a host may lack
    admit: Callable[[Facts], tuple[Plan, bytes]]  # the plan with the node, the packed record


class NodeAdmission:
    """The nodes that are missing from an attempt, and the tries to admit them."""

    def __init__(
        self,
        hooks: AdmissionHooks,
        order_sender: OrderSender,
        connector: Connector,
        inbox: Inbox,
        node_status: Callable[[str, str], None],
    ) -> None:
        self.hooks = hooks
        self.order_sender = order_sender
        self._connector = connector
        self._inbox = inbox
        self._node_status = node_status
        self.backoffs: dict[str, Backoff] = {}  # of the nodes that are tried repeatedly
        self._last_reasons: dict[str, str] = {}

    def schedule(self, names: Iterable[str], reason: str) -> None:
        """Try to admit these nodes from now on."""
        for name in names:
            self.backoffs[name] = Backoff(reason, time.monotonic())

    def retry_due(self, now: float) -> None:
        """Start the next try of each node, if it is time."""
        for node in self.hooks.spec.nodes:
            if backoff := self.backoffs.get(node.name):
                backoff.start_if_due(now, self._try_admit, node)

    def on_failure(self, name: str, reason: str) -> str:
        """Try a node again later that cannot join; return a message, "" if nothing is new."""
        if name in self.backoffs:
            self.backoffs[name].on_failure(reason)
        previous = self._last_reasons.get(name)
        self._last_reasons[name] = reason
        return "" if previous == reason else f"{name} cannot join: {reason}; trying again"

    def _try_admit(self, node: Node, backoff: Backoff) -> None:
        name = node.name
        hooks = self.hooks
        inbox = BoundedInbox()
        spec = replace(hooks.spec, nodes=(node,))
        collector = FactsCollector(spec, self._connector, inbox, hooks.request, lambda *_: None)
        try:
            facts, problems = collector.collect()
            found = [*problems.values()] or hooks.validate(node, facts[name])
            if found:
                raise NotReady(found)
            session = collector.sessions[name]
            snapshot = hooks.snapshot_if_needed(facts)
            if snapshot is not None and not facts[name].has_release:
                CodePush(spec, snapshot, {name: session}, inbox, self._node_status).run()
                facts[name] = replace(facts[name], has_release=True)
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
        session.redirect(self._inbox)
        with contextlib.suppress(queue.Empty):
            while True:
                self._inbox.put(inbox.get_nowait())
        self._inbox.put((session, Frame("admitted", {"facts": facts[name]})))
