"""Admission of nodes to a running attempt: connect, check and push code, as at a launch.

Each try runs in a thread with its own inbox, so that it may wait for its host. When the node is
ready, its session moves to the inbox of the attempt, which receives an "admitted" frame.
"""

from __future__ import annotations

import contextlib
import functools
import queue
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from runner.control.attempt.node import Backoff
from runner.control.attempt.start import OrderSender
from runner.control.code.push import CodePush
from runner.control.code.snapshot import Snapshot
from runner.control.rpc.facts import FactsCollector
from runner.control.rpc.session import Connector, HostSession, Inbox
from runner.core.errors import NotReady, Problem
from runner.core.model.facts import Facts, FactsRequest
from runner.core.model.plan import Plan
from runner.core.model.spec import Node, Spec
from runner.core.protocol.frames import Frame


@dataclass(frozen=True)
class AdmissionHooks:
    """What the launch contributes to the admission of a node.

    Attributes:
        spec: The run, with every node that may take part.
        request: Returns the facts request for a node.
        validate: Returns the problems of a node with these facts.
        snapshot_if_needed: Returns the code that a host with these facts may lack, None for none.
        admit: Takes the facts of a node, and returns the plan with it and the packed record of the
            run; raises NotReady where the nodes do not fit together.
    """

    spec: Spec
    request: Callable[[Node], FactsRequest]
    validate: Callable[[Node, Facts], list[Problem]]
    snapshot_if_needed: Callable[[dict[str, Facts]], Snapshot | None]
    admit: Callable[[Facts], tuple[Plan, bytes]]


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
        self.hooks, self.order_sender = hooks, order_sender
        self._connector, self._inbox, self._node_status = connector, inbox, node_status
        self._backoffs: dict[str, Backoff] = {}
        self._last_reasons: dict[str, str] = {}

    def schedule(self, names: Iterable[str], reason: str) -> None:
        """Try to admit these nodes from now on."""
        for name in names:
            self._backoffs[name] = Backoff(reason, time.monotonic())

    def is_scheduled(self, name: str) -> bool:
        """Return whether that node is tried repeatedly."""
        return name in self._backoffs

    def retry_due(self, now: float) -> None:
        """Start the next try of each node, if it is time."""
        for node in self.hooks.spec.nodes:
            backoff = self._backoffs.get(node.name)
            if backoff is not None and not backoff.in_progress and now >= backoff.next_try_at:
                backoff.in_progress = True
                work = functools.partial(self._try_admit, node, backoff)
                threading.Thread(target=work, daemon=True, name=f"join {node.name}").start()

    def on_admitted(self, name: str) -> None:
        """Stop trying: the node gets its order."""
        self._backoffs.pop(name, None)

    def on_failure(self, name: str, reason: str) -> str:
        """Try a node again later that cannot join; return a message, "" if nothing is new."""
        if name in self._backoffs:
            self._backoffs[name].on_failure(reason)
        previous, self._last_reasons[name] = self._last_reasons.get(name), reason
        return "" if previous == reason else f"{name} cannot join: {reason}; trying again"

    def _try_admit(self, node: Node, backoff: Backoff) -> None:
        inbox: Inbox = queue.SimpleQueue()
        node_spec = replace(self.hooks.spec, nodes=(node,))
        collector = FactsCollector(
            node_spec, self._connector, inbox, self.hooks.request, lambda *_: None
        )
        try:
            facts = collector.at_least(1, self.hooks.validate).facts
            session = collector.sessions[node.name]
            self._push(node_spec, session, facts, inbox)
        except Exception as error:  # noqa: BLE001 (whatever it is, the next try may succeed)
            problems = error.problems if isinstance(error, NotReady) else ()
            message = problems[0].message if problems else f"{type(error).__name__}: {error}"
            for opened in collector.sessions.values():
                opened.close()
            if collector.sessions:  # it answers, but cannot join as it is
                failure = {"node": node.name, "reason": message}
                self._inbox.put((None, Frame("admission_failed", failure)))
            else:
                backoff.on_failure(message)
            return
        session.redirect(self._inbox)
        with contextlib.suppress(queue.Empty):
            while True:
                self._inbox.put(inbox.get_nowait())
        self._inbox.put((session, Frame("admitted", {"facts": facts[node.name]})))

    def _push(
        self, spec: Spec, session: HostSession, facts: dict[str, Facts], inbox: Inbox
    ) -> None:
        snapshot = self.hooks.snapshot_if_needed(facts)
        name = session.node.name
        if snapshot is not None and not facts[name].has_release:
            CodePush(spec, snapshot, {name: session}, inbox, self._node_status).run()
            facts[name] = replace(facts[name], has_release=True)
