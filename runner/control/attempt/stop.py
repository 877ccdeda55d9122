"""The end of an attempt as the controller brings it about: politely, at once, and on record."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from runner.control.attempt.node import NodeWatch
from runner.control.rpc.session import Session
from runner.core.model.spec import Spec
from runner.core.outcome.verdict import Observed
from runner.core.protocol.events import Body, Cause, Event, StopAsked, Stopping
from runner.core.relaunch.policy import LONGEST_S

ENOUGH = 2
"""After so many signals the user wants no more logs either."""

LADDER_S = 16.0
"""What the hosts' own ladder may take beyond the grace (`host.following.DEAF_S`, and a margin)."""

DECIDE_S = 90.0
"""How long hosts may look at themselves before the next attempt (see `host.election`)."""


class Phase(Protocol):
    """Where it is said what is going on."""

    def __call__(self, text: str, lasted: float = 0.0) -> None:
        """Take what it is, and for how many seconds it has been so."""


@dataclass(frozen=True)
class Callbacks:
    """Where a watch reports to: the record, the logs, and the person."""

    record: Callable[[Event], None]
    log: Callable[[str, str, str, int, bytes], None]
    say: Callable[[str], None]
    phase: Phase
    state: Callable[[str, str], None]
    console_full: Callable[[], bool]
    mute: Callable[[], None]


class Chronicle:
    """What happened in an attempt, on our clock, as hosts told it and as we saw it."""

    def __init__(self, run_id: str, attempt: int, record: Callable[[Event], None]) -> None:
        self.observed: list[Observed] = []
        self._run_id, self._attempt, self._record = run_id, attempt, record
        self._seq = 0

    def heard(self, at: float, event: Event) -> None:
        """Take an event of a host's, which happened `at` on our clock."""
        self.observed.append(Observed(at, event))
        self._record(event)

    def note(self, name: str, body: Body, since: float | None = None) -> None:
        """Record what we saw or did ourselves, about the node `name`, now or `since`."""
        now = time.monotonic()
        mono = now if since is None else since
        wall = time.time() - (now - mono)
        self._seq += 1
        self.heard(mono, Event(self._run_id, name, self._attempt, self._seq, wall, mono, body))


class Stop:
    """The stop of one attempt.

    Attributes:
        wanted: Why, and whose wish it is; None while nobody wants it.
        signals: How often the user asked.
        deadline: When the hosts must have said that nothing is left.
    """

    def __init__(
        self, spec: Spec, nodes: Mapping[str, NodeWatch], tell: Callbacks, chronicle: Chronicle
    ) -> None:
        self.wanted: Stopping | None = None
        self.signals = 0
        self.deadline = float("inf")
        self._spec, self._nodes, self._tell, self._chronicle = spec, nodes, tell, chronicle

    def begin(self, reason: str, signum: int = 0, cause: Cause = Cause.PEER) -> None:
        """Have every host end its part, unless they do so already."""
        if signum:
            self._chronicle.note("", StopAsked(reason, signum))
        if self.wanted is not None:
            if cause is Cause.USER and self.wanted.cause is not Cause.USER:
                self.wanted = Stopping(reason, cause)  # nor shall it start once more
                self._say_to_all()
            return
        self.wanted = Stopping(reason, Cause.USER if cause is Cause.USER else Cause.PEER)
        self._tell.phase("stopping")
        for name, node in self._nodes.items():
            if not node.ended and not node.lost:
                self._tell.state(name, "stopping")
        self._tell.mute()
        if not signum:
            self._chronicle.note("", StopAsked(reason))
            grace = f"; the ranks have up to {self._spec.grace_s:g} s to end"
            rest = grace if cause is Cause.USER else "; stopping the rest"
            self._tell.say(f"{reason}{rest}")
        self.deadline = time.monotonic() + self._spec.grace_s + LADDER_S
        self._say_to_all()

    def wait_for_hosts(self) -> None:
        """Nothing is left on a host; it may take the others a while to decide what follows."""
        longest = LONGEST_S + self._spec.lost_s + self._spec.grace_s + DECIDE_S
        self.deadline = time.monotonic() + longest

    def by_signal(self, signum: int) -> None:
        """Stop for the user; a second time at once, a third without the rest of the logs."""
        self.signals += 1
        if self.signals == 1:
            self.begin("interrupted", signum, Cause.USER)
            grace = f"{self._spec.grace_s:g} s"
            self._tell.say(
                f"stopping: the ranks have up to {grace} to end; Ctrl-C again kills them now"
            )
            return
        self.deadline = time.monotonic() + LADDER_S
        if self.signals > ENOUGH:
            self._leave_logs()
        self._say_to_all()
        waiting = [name for name, node in self._nodes.items() if not node.ended]
        self._tell.say(f"killing what is left on {', '.join(waiting) or 'no node'}")

    def say_to(self, session: Session) -> None:
        """Tell one host, if the end is wanted."""
        if self.wanted is not None:
            word = "kill" if self.signals > 1 else "stop"
            why = {"reason": self.wanted.reason, "cause": self.wanted.cause.value}
            session.request("say", {"word": word, **why})

    def _say_to_all(self) -> None:
        for node in self._nodes.values():
            if not node.ended and node.there:
                self.say_to(node.there)

    def _leave_logs(self) -> None:
        """Fetch no more of what ended hosts wrote; the stop itself is never abandoned."""
        for name, node in self._nodes.items():
            if node.ended and not node.settled:
                node.settled = True
                self._tell.say(f"{name}: the rest of its logs stays there, in cluster.workdir")
