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

from runner.control.attempt.monitor import AttemptMonitor
from runner.control.attempt.observer import RunObserver
from runner.control.code.push import CodePush, PushTarget
from runner.control.code.snapshot import Snapshot
from runner.control.rpc.connector import PING_S, CollectedFacts, Connector, FactsCollector
from runner.control.rpc.session import HostSession, Inbox
from runner.core.errors import Interrupted, Problem
from runner.core.model.facts import Facts, FactsRequest
from runner.core.model.spec import Node, Spec
from runner.core.planning.build_plan import Plan
from runner.core.protocol.events import Event
from runner.core.protocol.frames import Frame
from runner.ui.console.plain import Console

FLUSH_TIMEOUT_S = 2.0
"""How long our last words wait for a console that is busy with the ranks'."""

RELAUNCH_NOTICE_S = 10.0
"""So long hosts take it that a launch is about to start a run once more, in the pause."""

RELAUNCH_PREPARE_S = 120.0
"""And so long while the next attempt is made ready: facts, setups, code."""

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class HostPool:
    """The hosts of one spec, and the console that shows how it goes with them."""

    def __init__(self, spec: Spec, console: Console, inbox: Inbox) -> None:
        self.spec, self.console, self.inbox = spec, console, inbox
        self.connector = Connector(spec, console.message)
        self.sessions: dict[str, HostSession] = {}

    def collect_facts(
        self,
        request: Callable[[Node], FactsRequest],
        validate: Callable[[Node, Facts], list[Problem]],
    ) -> dict[str, Facts]:
        """Connect to every host at once, and return the facts of each.

        Raises:
            NotReady: With every problem of every host.
            Interrupted: By a signal.
        """
        return self.collect_facts_at_least(request, validate, len(self.spec.nodes)).facts

    def collect_facts_at_least(
        self,
        request: Callable[[Node], FactsRequest],
        validate: Callable[[Node, Facts], list[Problem]],
        minimum: int,
        spares: tuple[Node, ...] = (),
        *,
        keep_spares: bool = False,
    ) -> CollectedFacts:
        """Likewise, where so many will do; spares are no more than looked at, unless kept.

        Raises:
            NotReady: They are fewer, or the master is not among them.
            Interrupted: By a signal.
        """
        self.console.phase("connecting")
        full_spec = replace(self.spec, nodes=(*self.spec.nodes, *spares))
        collector = FactsCollector(
            full_spec, self.connector, self.inbox, request, validate, self.console.node_status
        )
        self.sessions = collector.sessions
        collected = collector.at_least(minimum, spares)
        for node in spares:
            self.console.node_status(node.name, "spare")
        retained = {*collected.facts, *(collected.spares if keep_spares else ())}
        for node in full_spec.nodes:
            if node.name not in retained:
                self._disconnect(node.name)
        return collected

    def collect_available_facts(
        self, request: Callable[[Node], FactsRequest], *, reuse_sessions: bool = False
    ) -> tuple[dict[str, Facts], dict[str, Problem]]:
        """Connect to every host at once; return the facts of some, and what kept the others.

        With `reuse_sessions`, connections that are open are used once more, and only those to hosts
        whose facts came stay.

        Raises:
            Interrupted: By a signal.
        """
        self.console.phase("connecting")
        open_sessions = self.sessions if reuse_sessions else {}
        collector = FactsCollector(
            *(
                self.spec,
                self.connector,
                self.inbox,
                request,
                lambda _, __: [],
                self.console.node_status,
            ),
            open_sessions=open_sessions,
        )
        self.sessions = {**open_sessions, **collector.sessions}
        facts, problems = collector.collect()
        self.sessions = {**open_sessions, **collector.sessions}
        for name in [name for name in self.sessions if name not in facts]:
            self._disconnect(name)
        return facts, problems

    def retarget(self, spec: Spec) -> None:
        """Have contact with these nodes from now on, by these limits."""
        self.spec = self.connector.spec = spec

    def _disconnect(self, name: str) -> None:
        session = self.sessions.pop(name, None)
        if session is not None:
            session.close()

    def wait_before_relaunch(self, seconds: float, run_id: str) -> str:
        """Wait before another attempt of a run, and keep its hosts company meanwhile.

        Returns:
            A node where somebody said that there shall be none; "" for no such.

        Raises:
            Interrupted: By a signal.
        """
        deadline_at = time.monotonic() + seconds
        while (remaining_s := deadline_at - time.monotonic()) > 0:
            self.announce_relaunch(run_id, RELAUNCH_NOTICE_S)
            if node := self.poll_for_stop(min(PING_S, remaining_s)):
                return node
        self.announce_relaunch(run_id, RELAUNCH_PREPARE_S)
        return ""

    def announce_relaunch(self, run_id: str, seconds: float) -> None:
        """Have the hosts say for so long that another attempt of a run is about to begin."""
        for name, session in self.sessions.items():
            session.request(
                "mark_relaunch_pending", {"run_id": run_id, "node": name, "for_s": seconds}
            )

    def poll_for_stop(self, seconds: float) -> str:
        """Wait between two attempts.

        Returns:
            A node where somebody said that there shall be none; "" for no such.

        Raises:
            Interrupted: By a signal.
        """
        deadline_at = time.monotonic() + seconds
        while (remaining_s := deadline_at - time.monotonic()) > 0:
            with contextlib.suppress(queue.Empty):
                session, frame = self.inbox.get(timeout=remaining_s)
                if session is None and frame.kind == "signal":
                    raise Interrupted(128 + int(frame.data["signal"]))
                if session is not None and frame.kind in ("reconnected", "admitted"):
                    session.close()  # for an attempt that is over
                if session is not None and frame.data.get("stop_requested"):
                    return session.node.name
        return ""

    def push(
        self, snapshot: Snapshot, facts: dict[str, Facts], *, verify: bool = False
    ) -> dict[str, PushTarget]:
        """Bring the code to every host that lacks it; mark it as held in `facts`.

        With `verify`, hosts that have it read all of it once more.

        Raises:
            NotReady: With every problem of every host.
            Interrupted: By a signal.
        """
        targets = {
            name: self.sessions[name]
            for name, node_facts in facts.items()
            if verify or not node_facts.has_release
        }
        if not targets:
            return {}
        self.console.phase("pushing the code")
        keepalive_only = [self.sessions[name] for name in facts if name not in targets]
        code_push = CodePush(
            self.spec, snapshot, targets, self.inbox, self.console.node_status, keepalive_only
        )
        code_push.run()
        for name in targets:
            facts[name] = replace(facts[name], has_release=True)
        return code_push.targets

    def monitor(
        self,
        plan: Plan,
        log: Callable[[str, str, str, int, bytes], None] = lambda *_: None,
        record: Callable[[Event], None] = lambda _: None,
    ) -> AttemptMonitor:
        """Return a watch over a run of these hosts that tells the console how it goes.

        Args:
            plan: The run.
            log: Takes (node, source, stream, offset, bytes) of each log.
            record: Takes each event.
        """
        console = self.console
        observer = RunObserver(
            record=record,
            log=log,
            message=console.message,
            phase=console.phase,
            node_status=console.node_status,
            console_full=lambda: console.is_full,
            mute=console.mute,
        )
        return AttemptMonitor(self.spec, plan, self.connector, self.sessions, self.inbox, observer)

    @property
    def clock_offsets(self) -> dict[str, float]:
        """How far each host's clock is ahead of ours, in seconds."""
        return {name: session.clock_offset for name, session in self.sessions.items()}

    @property
    def signal_pending(self) -> bool:
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
        self.connector.close()


def user_at_host() -> str:
    """Return who we are, as user@machine."""
    user = str(os.getuid())
    with contextlib.suppress(KeyError, OSError):  # a user without a name
        user = getpass.getuser()
    return f"{user}@{socket.gethostname()}"


@contextlib.contextmanager
def forward_signals(inbox: Inbox) -> Iterator[None]:
    """Have every signal that asks us to end arrive in the inbox, in order."""

    def enqueue(signum: int, _: object) -> None:
        inbox.put((None, Frame("signal", {"signal": signum})))

    handled = [signum for signum in SIGNALS if signal.getsignal(signum) != signal.SIG_IGN]  # nohup
    previous_handlers = {signum: signal.signal(signum, enqueue) for signum in handled}
    try:
        yield
    finally:
        for signum, handler in previous_handlers.items():
            signal.signal(signum, handler)


@contextlib.contextmanager
def open_host_pool(spec: Spec, console: Console) -> Iterator[HostPool]:
    """Offer contact for one verb; its end closes all, the console too."""
    inbox: Inbox = queue.SimpleQueue()
    with forward_signals(inbox):
        pool = HostPool(spec, console, inbox)
        try:
            yield pool
        finally:
            console.close(deadline(FLUSH_TIMEOUT_S))
            pool.close()


def deadline(seconds: float) -> Callable[[], bool]:
    """Return a question whose answer turns to yes after so long."""
    deadline_at = time.monotonic() + seconds
    return lambda: time.monotonic() >= deadline_at
