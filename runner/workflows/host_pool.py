"""Contact with every host of a run or a verb: connections, signals, facts, and the push of code."""

from __future__ import annotations

import contextlib
import getpass
import os
import queue
import signal
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from runner.control.attempt.monitor import Watch
from runner.control.attempt.stop import Callbacks
from runner.control.code.push import Deployment, Receiver
from runner.control.code.snapshot import Snapshot
from runner.control.rpc.connector import PING_S, Gathered, Gathering, Reach
from runner.control.rpc.session import Inbox, Session
from runner.core.errors import Interrupted, Problem
from runner.core.model.facts import Facts, FactsRequest
from runner.core.model.spec import Node, Spec
from runner.core.planning.build_plan import Plan
from runner.core.protocol.events import Event
from runner.core.protocol.frames import Frame
from runner.ui.console.plain import Console

SETTLE_S = 2.0
"""How long our last words wait for a console that is busy with the ranks'."""

HEARD_S = 10.0
"""So long hosts take it that a launch is about to start a run once more, in the pause."""

READY_S = 120.0
"""And so long while the next attempt is made ready: facts, setups, code."""

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Contact:
    """The hosts of one spec, and the console that shows how it goes with them."""

    def __init__(self, spec: Spec, console: Console, inbox: Inbox) -> None:
        self.spec, self.console, self.inbox = spec, console, inbox
        self.reach = Reach(spec, console.say)
        self.sessions: dict[str, Session] = {}

    def gather(
        self,
        request: Callable[[Node], FactsRequest],
        judge: Callable[[Node, Facts], list[Problem]],
    ) -> dict[str, Facts]:
        """Connect to every host at once, and return the facts of each.

        Raises:
            NotReady: With every problem of every host.
            Interrupted: By a signal.
        """
        return self.gather_enough(request, judge, len(self.spec.nodes)).facts

    def gather_enough(
        self,
        request: Callable[[Node], FactsRequest],
        judge: Callable[[Node, Facts], list[Problem]],
        least: int,
        spares: tuple[Node, ...] = (),
        *,
        keep_spares: bool = False,
    ) -> Gathered:
        """Likewise, where so many will do; spares are no more than looked at, unless kept.

        Raises:
            NotReady: They are fewer, or the master is not among them.
            Interrupted: By a signal.
        """
        self.console.phase("connecting")
        asked = replace(self.spec, nodes=(*self.spec.nodes, *spares))
        gathering = Gathering(asked, self.reach, self.inbox, request, judge, self.console.state)
        self.sessions = gathering.sessions
        found = gathering.enough(least, spares)
        for node in spares:
            self.console.state(node.name, "spare")
        stay = {*found.facts, *(found.spares if keep_spares else ())}
        for node in asked.nodes:
            if node.name not in stay:
                self._drop(node.name)
        return found

    def gather_some(
        self, request: Callable[[Node], FactsRequest], *, again: bool = False
    ) -> tuple[dict[str, Facts], dict[str, Problem]]:
        """Connect to every host at once; return the facts of some, and what kept the others.

        With `again`, connections that are open are used once more, and only those to hosts whose
        facts came stay.

        Raises:
            Interrupted: By a signal.
        """
        self.console.phase("connecting")
        known = self.sessions if again else {}
        gathering = Gathering(
            *(self.spec, self.reach, self.inbox, request, lambda _, __: [], self.console.state),
            known=known,
        )
        self.sessions = {**known, **gathering.sessions}
        facts, problems = gathering.some()
        self.sessions = {**known, **gathering.sessions}
        for name in [name for name in self.sessions if name not in facts]:
            self._drop(name)
        return facts, problems

    def turn_to(self, spec: Spec) -> None:
        """Have contact with these nodes from now on, by these limits."""
        self.spec = self.reach.spec = spec

    def _drop(self, name: str) -> None:
        session = self.sessions.pop(name, None)
        if session is not None:
            session.close()

    def pause(self, seconds: float, run_id: str) -> str:
        """Wait before another attempt of a run, and keep its hosts company meanwhile.

        Returns:
            A node where somebody said that there shall be none; "" for no such.

        Raises:
            Interrupted: By a signal.
        """
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self.announce(run_id, HEARD_S)
            if node := self.wait(min(PING_S, left)):
                return node
        self.announce(run_id, READY_S)
        return ""

    def announce(self, run_id: str, seconds: float) -> None:
        """Have the hosts say for so long that another attempt of a run is about to begin."""
        for name, session in self.sessions.items():
            session.request("wait", {"run_id": run_id, "node": name, "for_s": seconds})

    def wait(self, seconds: float) -> str:
        """Wait between two attempts.

        Returns:
            A node where somebody said that there shall be none; "" for no such.

        Raises:
            Interrupted: By a signal.
        """
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            with contextlib.suppress(queue.Empty):
                session, frame = self.inbox.get(timeout=left)
                if session is None and frame.kind == "signal":
                    raise Interrupted(128 + int(frame.data["signal"]))
                if session is not None and frame.kind in ("opened", "arrived"):
                    session.close()  # for an attempt that is over
                if session is not None and frame.data.get("stopped"):
                    return session.node.name
        return ""

    def push(
        self, snapshot: Snapshot, facts: dict[str, Facts], *, verify: bool = False
    ) -> dict[str, Receiver]:
        """Bring the code to every host that lacks it; mark it as held in `facts`.

        With `verify`, hosts that have it read all of it once more.

        Raises:
            NotReady: With every problem of every host.
            Interrupted: By a signal.
        """
        lacking = {
            name: self.sessions[name]
            for name, told in facts.items()
            if verify or not told.release_held
        }
        if not lacking:
            return {}
        self.console.phase("pushing the code")
        beside = [self.sessions[name] for name in facts if name not in lacking]
        deployment = Deployment(
            self.spec, snapshot, lacking, self.inbox, self.console.state, beside
        )
        deployment.run()
        for name in lacking:
            facts[name] = replace(facts[name], release_held=True)
        return deployment.receivers

    def watch(
        self,
        plan: Plan,
        log: Callable[[str, str, str, int, bytes], None] = lambda *_: None,
        record: Callable[[Event], None] = lambda _: None,
    ) -> Watch:
        """Return a watch over a run of these hosts that tells the console how it goes.

        Args:
            plan: The run.
            log: Takes (node, source, stream, offset, bytes) of each log.
            record: Takes each event.
        """
        console = self.console
        callbacks = Callbacks(
            record=record,
            log=log,
            say=console.say,
            phase=console.phase,
            state=console.state,
            console_full=lambda: console.full,
            mute=console.mute,
        )
        return Watch(self.spec, plan, self.reach, self.sessions, self.inbox, callbacks)

    @property
    def skews(self) -> dict[str, float]:
        """How far each host's clock is ahead of ours, in seconds."""
        return {name: session.skew for name, session in self.sessions.items()}

    @property
    def signalled(self) -> bool:
        """Whether a signal came that nobody took: then nobody waits for a console any more."""
        with contextlib.suppress(queue.Empty):
            while True:
                session, frame = self.inbox.get_nowait()
                if session is None and frame.kind == "signal":
                    return True
        return False

    def close(self) -> None:
        """End every connection."""
        for session in list(self.sessions.values()):  # threads may still be connecting
            session.close()
        self.reach.close()


def whoami() -> str:
    """Return who we are, as user@machine."""
    user = str(os.getuid())
    with contextlib.suppress(KeyError, OSError):  # a user without a name
        user = getpass.getuser()
    return f"{user}@{socket.gethostname()}"


@contextlib.contextmanager
def signals_to(inbox: Inbox) -> Iterator[None]:
    """Have every signal that asks us to end arrive in the inbox, in order."""

    def note(signum: int, _: object) -> None:
        inbox.put((None, Frame("signal", {"signal": signum})))

    heeded = [signum for signum in SIGNALS if signal.getsignal(signum) != signal.SIG_IGN]  # nohup
    before = {signum: signal.signal(signum, note) for signum in heeded}
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


@contextlib.contextmanager
def contact(spec: Spec, console: Console) -> Iterator[Contact]:
    """Offer contact for one verb; its end closes all, the console too."""
    inbox: Inbox = queue.SimpleQueue()
    with signals_to(inbox):
        made = Contact(spec, console, inbox)
        try:
            yield made
        finally:
            console.close(after(SETTLE_S))
            made.close()


def after(seconds: float) -> Callable[[], bool]:
    """Return a question whose answer turns to yes after so long."""
    end = time.monotonic() + seconds
    return lambda: time.monotonic() >= end
