"""Nodes that join a run while it is on: tried again and again, judged and furnished as at a launch.

Each try is a thread with an inbox of its own, so that it may wait for its host as a launch does;
once all is ready its wire is handed over, and the inbox of the run hears "arrived" of it.
"""

from __future__ import annotations

import contextlib
import functools
import queue
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from runner.control.attempt.node import Away
from runner.control.code.push import Deployment
from runner.control.code.snapshot import Snapshot
from runner.control.rpc.connector import Gathering, Reach
from runner.control.rpc.session import Inbox, Session
from runner.core.errors import NotReady, Problem
from runner.core.model.facts import Facts, FactsRequest
from runner.core.model.spec import Node, Spec
from runner.core.planning.build_plan import Plan
from runner.core.protocol.frames import Frame


@dataclass(frozen=True)
class Admission:
    """What a launch knows of nodes that may join.

    Attributes:
        spec: The run; its nodes are all that may take part.
        request: Returns what to ask a node.
        judge: Returns what of a node's facts keeps it from the run.
        to_push: Returns the code that a host with these facts may lack, None for none.
        admit: Takes the facts of a node, and returns the plan with it, and what it is to have on
            record of the run, packed; raises NotReady where the nodes do not go together.
    """

    spec: Spec
    request: Callable[[Node], FactsRequest]
    judge: Callable[[Node, Facts], list[Problem]]
    to_push: Callable[[dict[str, Facts]], Snapshot | None]
    admit: Callable[[Facts], tuple[Plan, bytes]]


class Joining:
    """The nodes of a run that are not there, and the tries to take them in."""

    def __init__(
        self, admission: Admission, reach: Reach, inbox: Inbox, state: Callable[[str, str], None]
    ) -> None:
        self.admission = admission
        self._reach, self._inbox, self._state = reach, inbox, state
        self._away: dict[str, Away] = {}
        self._told: dict[str, str] = {}

    def expect(self, names: Iterable[str], reason: str) -> None:
        """Try to take in these nodes from now on."""
        for name in names:
            self._away[name] = Away(reason, time.monotonic())

    def expects(self, name: str) -> bool:
        """Whether that node is tried again and again."""
        return name in self._away

    def node(self, name: str) -> Node:
        """Return how a node is reached."""
        return next(node for node in self.admission.spec.nodes if node.name == name)

    def look_after(self, now: float) -> None:
        """Try those once more whose time it is."""
        for name, away in self._away.items():
            if not away.trying and now >= away.next_try:
                away.trying = True
                work = functools.partial(self._try, self.node(name), away)
                threading.Thread(target=work, daemon=True, name=f"join {name}").start()

    def taken(self, name: str) -> None:
        """Try no more: it has its order."""
        self._away.pop(name, None)

    def failed(self, name: str, why: str) -> None:
        """Try again later: it may not take part as it is."""
        if name in self._away:
            self._away[name].failed(why)

    def news(self, name: str, why: str) -> bool:
        """Whether it is said for the first time why a node may not take part."""
        known, self._told[name] = self._told.get(name), why
        return known != why

    def _try(self, node: Node, away: Away) -> None:
        inbox: Inbox = queue.SimpleQueue()
        alone = replace(self.admission.spec, nodes=(node,))
        gathering = Gathering(
            *(alone, self._reach, inbox, self.admission.request, self.admission.judge),
            lambda *_: None,
        )
        try:
            facts = gathering.run()
            session = gathering.sessions[node.name]
            self._push(alone, session, facts, inbox)
        except Exception as error:  # noqa: BLE001 (whatever it is, the next try may do better)
            problems = error.problems if isinstance(error, NotReady) else ()
            what = problems[0].what if problems else f"{type(error).__name__}: {error}"
            for each in gathering.sessions.values():
                each.close()
            away.failed(what)
            if gathering.sessions:  # it is there, and not as it should be
                self._inbox.put((None, Frame("unfit", {"node": node.name, "why": what})))
            return
        session.hand_over(self._inbox)
        with contextlib.suppress(queue.Empty):
            while True:
                self._inbox.put(inbox.get_nowait())
        self._inbox.put((session, Frame("arrived", {"facts": facts[node.name]})))

    def _push(self, spec: Spec, session: Session, facts: dict[str, Facts], inbox: Inbox) -> None:
        snapshot = self.admission.to_push(facts)
        name = session.node.name
        if snapshot is not None and not facts[name].release_held:
            Deployment(spec, snapshot, {name: session}, inbox, self._state, []).run()
            facts[name] = replace(facts[name], release_held=True)
