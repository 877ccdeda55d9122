"""What is known of one node of an attempt, and how it is reached again when its wire breaks."""

from __future__ import annotations

import functools
import random
import threading
import time
from dataclasses import dataclass, field

from runner.control.attempt.log_tail import Follower
from runner.control.rpc.connector import AT_ONCE, Reach
from runner.control.rpc.session import Inbox, Session
from runner.core.errors import NotReady
from runner.core.model.spec import Node
from runner.core.planning.build_plan import NodePlan
from runner.core.protocol.frames import Frame

AGAIN_S, MOST_AGAIN_S = 0.3, 15.0
"""The pause before the first try to reach a host again, and the longest one."""


STEADY_S = 10.0
"""A new wire that breaks within this time is one more failed try."""


@dataclass
class Away:
    """A broken wire, and the tries for a new one."""

    reason: str
    since: float
    tries: int = 0
    trying: bool = False
    next_try: float = field(default_factory=time.monotonic)
    pause: float = AGAIN_S

    def failed(self, reason: str) -> None:
        """Wait for longer before the next try."""
        self.reason = reason
        self.next_try = time.monotonic() + self.pause * random.uniform(0.5, 1.0)  # noqa: S311
        self.pause = min(MOST_AGAIN_S, 2 * self.pause)
        self.tries += 1
        self.trying = False


@dataclass
class NodeWatch:
    """One node: its wire, and how far it is.

    Attributes:
        share: Its share of the plan.
        node: How it is reached.
        follower: Its files.
        session: Its wire; None before the first.
        going: Whether its supervisor runs, or ran.
        joined: Whether its supervisor keeps in touch with the others.
        apart: Whether it said that it cannot.
        kept: Whether it goes on without any controller.
        ended: Whether it said that nothing is left.
        lost: Whether it counts as lost.
        left_at: When the run went on without it.
        began_at: When its program was started last.
        orders: How often it was sent an order in this attempt.
        late: Whether it was, when the run was on already.
        returning: Whether what it tells is still of the time before it came back.
        done: Whether its program succeeded.
        idle: Whether it was told to end since the run succeeded without it.
        settled: Whether nothing more is expected of it.
        fed: When it sent something of the run last.
        heard: When it was heard last, over whatever wire.
        started: The ranks that run, or ran; where torch starts them anew, those of the last time.
        master: Where these meet, by what torch told them.
        away: Set while it has no wire.
        before: The last time that it had none; it ended at `back`.
    """

    share: NodePlan
    node: Node
    follower: Follower
    session: Session | None
    going: bool = False
    joined: bool = False
    apart: bool = False
    kept: bool = False
    ended: bool = False
    lost: bool = False
    settled: bool = False
    left_at: float = float("-inf")
    began_at: float = float("-inf")
    orders: int = 1
    late: bool = False
    returning: bool = False
    done: bool = False
    idle: bool = False
    fed: float = field(default_factory=time.monotonic)
    heard: float = field(default_factory=time.monotonic)
    started: set[int] = field(default_factory=set)
    master: str = ""
    away: Away | None = None
    before: Away | None = None
    back: float = 0.0

    @property
    def name(self) -> str:
        """Its name in the YAML."""
        return self.share.node

    @property
    def there(self) -> Session | None:
        """The wire, if it can be spoken over."""
        usable = self.session is not None and not self.session.closed and self.away is None
        return self.session if usable else None

    @property
    def silence(self) -> float:
        """Seconds since it was heard."""
        if self.session is not None:
            self.heard = max(self.heard, self.session.heard)
        return time.monotonic() - self.heard

    def starts(self, rank: int, master: str) -> None:
        """Take it that a rank runs; what met elsewhere before is over."""
        if master != self.master:
            self.started.clear()
        self.master = master
        self.started.add(rank)

    def come_back(self, share: NodePlan, session: Session) -> None:
        """It begins once more, with a new wire."""
        self.share, self.session, self.away = share, session, None
        self.going = self.joined = self.apart = self.kept = self.ended = False
        self.lost = self.settled = False
        self.fed = self.heard = time.monotonic()
        self.started.clear()
        self.orders += 1
        self.late = self.returning = True
        self.follower.again()

    def depart(self, reason: str) -> None:
        """It has no wire any more; a wire that held for a moment only is no reason for haste."""
        self.away = Away(reason, self.heard)
        if self.before is not None and time.monotonic() - self.back < STEADY_S:
            self.away.pause = self.before.pause
            self.away.failed(reason)
            self.away.tries = 0

    def drop(self) -> None:
        """Let go of its wire; what still comes over it is no longer heeded."""
        if self.session is not None:
            self.heard = max(self.heard, self.session.heard)
            self.session.close()
            self.session = None

    @property
    def progress(self) -> str:
        """How many of its ranks run, in words."""
        there, all_of_them = len(self.started), self.share.size
        return "running" if there == all_of_them else f"{there} of {all_of_them} ranks"


class Reopener:
    """Opens new wires, each in a thread of its own; the inbox hears "opened" of it."""

    def __init__(self, reach: Reach, inbox: Inbox) -> None:
        self._reach, self._inbox = reach, inbox
        self._at_once = threading.BoundedSemaphore(AT_ONCE)

    def look_after(self, watched: NodeWatch, now: float) -> None:
        """Try once more, if it is time."""
        away = watched.away
        if away is not None and not away.trying and now >= away.next_try:
            away.trying = True
            work = functools.partial(self._open, watched.node, away)
            threading.Thread(target=work, daemon=True, name="reopen").start()

    def _open(self, node: Node, away: Away) -> None:
        try:
            with self._at_once:
                session = self._reach.open(node, self._inbox)
        except NotReady as error:
            away.failed(error.problems[0].what)
        except Exception as error:  # noqa: BLE001 (whatever it is, the next try may do better)
            away.failed(f"{type(error).__name__}: {error}")
        else:
            self._inbox.put((session, Frame("opened")))
