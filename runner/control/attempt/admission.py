"""Nodes that join a run while it is on: tried again and again, judged and furnished as at a launch.

Each try is a thread with an inbox of its own, so that it may wait for its host as a launch does;
once all is ready its wire is handed over, and the inbox of the run hears "admitted" of it.
"""

from __future__ import annotations

import contextlib
import functools
import queue
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from runner.control.attempt.reconnect import Backoff
from runner.control.code.push import CodePush
from runner.control.code.snapshot import Snapshot
from runner.control.rpc.connector import Connector
from runner.control.rpc.facts import FactsCollector
from runner.control.rpc.session import HostSession, Inbox
from runner.core.errors import NotReady, Problem
from runner.core.model.facts import Facts, FactsRequest
from runner.core.model.spec import Node, Spec
from runner.core.planning.build_plan import Plan
from runner.core.protocol.frames import Frame


@dataclass(frozen=True)
class AdmissionHooks:
    """What a launch knows of nodes that may join.

    Attributes:
        spec: The run; its nodes are all that may take part.
        request: Returns what to ask a node.
        validate: Returns what of a node's facts keeps it from the run.
        snapshot_if_needed: Returns the code that a host with these facts may lack, None for none.
        admit: Takes the facts of a node, and returns the plan with it, and what it is to have on
            record of the run, packed; raises NotReady where the nodes do not go together.
    """

    spec: Spec
    request: Callable[[Node], FactsRequest]
    validate: Callable[[Node, Facts], list[Problem]]
    snapshot_if_needed: Callable[[dict[str, Facts]], Snapshot | None]
    admit: Callable[[Facts], tuple[Plan, bytes]]


class NodeAdmission:
    """The nodes of a run that are not there, and the tries to take them in."""

    def __init__(
        self,
        hooks: AdmissionHooks,
        connector: Connector,
        inbox: Inbox,
        node_status: Callable[[str, str], None],
    ) -> None:
        self.hooks = hooks
        self._connector, self._inbox, self._node_status = connector, inbox, node_status
        self._backoffs: dict[str, Backoff] = {}
        self._last_reasons: dict[str, str] = {}

    def schedule(self, names: Iterable[str], reason: str) -> None:
        """Try to take in these nodes from now on."""
        for name in names:
            self._backoffs[name] = Backoff(reason, time.monotonic())

    def is_scheduled(self, name: str) -> bool:
        """Whether that node is tried again and again."""
        return name in self._backoffs

    def node(self, name: str) -> Node:
        """Return how a node is reached."""
        return next(node for node in self.hooks.spec.nodes if node.name == name)

    def retry_due(self, now: float) -> None:
        """Try those once more whose time it is."""
        for name, backoff in self._backoffs.items():
            if not backoff.in_progress and now >= backoff.next_try_at:
                backoff.in_progress = True
                work = functools.partial(self._try_admit, self.node(name), backoff)
                threading.Thread(target=work, daemon=True, name=f"join {name}").start()

    def on_admitted(self, name: str) -> None:
        """Try no more: it has its order."""
        self._backoffs.pop(name, None)

    def on_failure(self, name: str, reason: str) -> None:
        """Try again later: it may not take part as it is."""
        if name in self._backoffs:
            self._backoffs[name].on_failure(reason)

    def is_new_reason(self, name: str, reason: str) -> bool:
        """Whether it is said for the first time why a node may not take part."""
        previous, self._last_reasons[name] = self._last_reasons.get(name), reason
        return previous != reason

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
        except Exception as error:  # noqa: BLE001 (whatever it is, the next try may do better)
            problems = error.problems if isinstance(error, NotReady) else ()
            message = problems[0].message if problems else f"{type(error).__name__}: {error}"
            for opened in collector.sessions.values():
                opened.close()
            backoff.on_failure(message)
            if collector.sessions:  # it is there, and not as it should be
                self._inbox.put(
                    (None, Frame("admission_failed", {"node": node.name, "reason": message}))
                )
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
