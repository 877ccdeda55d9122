"""Host pool: the sessions to all hosts of a run or a verb, and the signals to this process."""

from __future__ import annotations

import contextlib
import queue
import signal
import time
from collections.abc import Callable, Collection, Container, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from runner.control.attempt.attempt import Attempt, Console
from runner.control.rpc.facts import FactsCollector
from runner.control.rpc.session import Connector, HostSession, Inbox
from runner.control.rpc.wait import TICK_S, Broadcast, WaitLoop
from runner.core.errors import NotReady, Problem
from runner.core.remote_run import RemoteRun
from runner.core.spec import Node, Spec
from runner.core.wire.codec import Frame
from runner.core.wire.events import Event
from runner.core.wire.facts import Facts, FactsRequest
from runner.core.wire.plan import Plan
from runner.core.wire.run_info import HostRunStatus

if TYPE_CHECKING:
    from runner.control.attempt.monitor import AttemptMonitor
    from runner.control.code.pool import Release
    from runner.control.code.push import PushTarget

FLUSH_TIMEOUT_S = 2.0  # the last messages wait so long for a console busy with output of the ranks

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class RunListing(NamedTuple):
    """The runs on some hosts, the oldest first."""

    runs: list[RemoteRun]
    problems: dict[str, Problem]  # of the hosts that did not answer
    hidden: dict[str, int]  # how many runs of other users, by node


def merge_statuses(
    replies: Mapping[str, Mapping[str, Any]], names: Sequence[str]
) -> list[RemoteRun]:
    """Return the runs that hosts list in their replies, the oldest first, by the clock here.

    A host speaks for itself alone: for the node of a run that is called like it, or for the one on
    it that is called like no node of now. All nodes that were asked are in `names`.
    """
    found: dict[str, dict[str, HostRunStatus]] = {}  # by run, and by name of now
    for name in filter(replies.__contains__, names):
        ahead_s = replies[name]["now"] - time.time()
        for status in replies[name]["runs"]:
            is_own = status.node == name
            if is_own or (status.here and status.node not in names):
                by_host = found.setdefault(status.info.run_id, {})
                if is_own or name not in by_host:
                    by_host[name] = replace(status, changed_at=status.changed_at - ahead_s)
    runs: list[tuple[float, RemoteRun]] = []
    for _, by_host in sorted(found.items()):
        info = max((status.info for status in by_host.values()), key=lambda info: info.attempt)
        changed_at = max(status.changed_at for status in by_host.values())
        runs.append((info.launched_at or changed_at, RemoteRun(info, by_host)))
    return [run for _, run in sorted(runs, key=lambda each: each[0])]


class HostPool:
    """The hosts of one spec, with a session to each that could be reached.

    In a later attempt `spec` perhaps has other nodes. Whatever waits for hosts raises `Interrupted`
    when a signal comes to this process.
    """

    def __init__(self, spec: Spec, console: Console, inbox: Inbox) -> None:
        self.spec = spec
        self.console = console
        self.inbox = inbox
        self.connector = Connector(spec, console.message)
        self.sessions: dict[str, HostSession] = {}
        self._is_quiet = False

    def collect_facts(
        self,
        request: Callable[[Node], FactsRequest],
        validate: Callable[[Node, Facts], list[Problem]],
    ) -> dict[str, Facts]:
        """Return the facts of every host; raise `NotReady` with all problems if there are any."""
        facts, unreachable = self.collect_available_facts(request)
        problems = [*unreachable.values()]
        for node in self.spec.nodes:
            if node.name in facts:
                problems += validate(node, facts[node.name])
        if problems:
            raise NotReady(list(dict.fromkeys(problems)))
        return facts

    def collect_available_facts(
        self, request: Callable[[Node], FactsRequest], spares: Sequence[Node] = ()
    ) -> tuple[dict[str, Facts], dict[str, Problem]]:
        """Connect to every host; return the facts of those that answer, the problem of the others.

        Open sessions are used again.
        """
        self.console.phase("asking the hosts" if self.sessions else "connecting")
        spec = replace(self.spec, nodes=(*self.spec.nodes, *spares))
        self.disconnect_all_but({node.name for node in spec.nodes})
        show = self.console.node_status
        collector = FactsCollector(
            spec, self.connector, self.inbox, request, show, open_sessions=self.sessions
        )
        self.sessions = collector.sessions
        facts, problems = collector.collect()
        self.disconnect_all_but(facts)
        return facts, problems

    def retarget(self, spec: Spec) -> None:
        """Work with the nodes and limits of another spec from now on."""
        self.spec = spec
        self.connector.spec = spec

    def disconnect_all_but(self, names: Container[str]) -> None:
        for name in [name for name in self.sessions if name not in names]:
            self.sessions.pop(name).close()

    def poll_for_stop(self, seconds: float) -> str:
        """Wait; return a node where a stop of the run was requested, "" for none."""
        pause = _Pause(self.sessions, self.inbox, seconds)
        pause.wait()
        return pause.stop_requested_on

    def push(self, release: Release, facts: dict[str, Facts]) -> dict[str, PushTarget]:
        """Push the code to every host that lacks it, and mark it as present in `facts`.

        Raises `NotReady` with every problem of every host.
        """
        from runner.control.code.push import CodePush

        lacking = [name for name in facts if not facts[name].has_release]
        if not lacking:
            return {}
        self.console.phase("pushing the code")
        show = self.console.node_status
        code_push = CodePush(self.spec, release, self.sessions, lacking, self.inbox, show)
        code_push.run()
        facts.update({name: replace(facts[name], has_release=True) for name in lacking})
        return code_push.targets

    def broadcast(self, names: Container[str] | None = None) -> Broadcast:
        """Return a broadcast to these nodes, or to all that were reached."""
        sessions = {n: each for n, each in self.sessions.items() if names is None or n in names}
        show = self.console.node_status if not self._is_quiet else lambda *_: None
        return Broadcast(sessions, self.inbox, self.spec.lost_s, show)

    @contextlib.contextmanager
    def quietly(self) -> Iterator[None]:
        """Show nothing of broadcasts."""
        self._is_quiet = True
        try:
            yield
        finally:
            self._is_quiet = False

    def runs(self, nodes: Sequence[Node], run_id: str = "") -> RunListing:
        """Return the runs on the hosts of these nodes: all, or one."""
        names = [node.name for node in nodes]
        request = {"run_id": run_id, "others": names}
        answers, problems = self.broadcast(names).collect("runs", request, "runs")
        hidden = {name: answers[name]["unreadable"] for name in names if name in answers}
        return RunListing(merge_statuses(answers, names), problems, hidden)

    def monitor(
        self,
        plan: Plan,
        record: Callable[[Event], None] = lambda _: None,
        log: Callable[[str, str, str, int, bytes], None] = lambda *_: None,
        message: Callable[[str], None] | None = None,
    ) -> AttemptMonitor:
        """Return a monitor of an attempt on these hosts, which shows its state on the console.

        `record` takes each event, `log` takes (node, source, stream, offset, bytes) of each log,
        `message` what happens, if not the console.
        """
        from runner.control.attempt.monitor import AttemptMonitor

        say = message or self.console.message
        watched = Attempt(self.spec, plan, self.sessions, self.console, record, log, say)
        return AttemptMonitor(watched, self.connector, self.inbox)

    def close_sessions(self) -> None:
        for name in list(self.sessions):  # threads may still be connecting
            self.sessions.pop(name).close()

    def close(self) -> None:
        self.close_sessions()
        self.connector.close()


class _Pause(WaitLoop):
    interrupted_message = "interrupted; nothing was started"
    owes_answers = False

    def __init__(self, sessions: Mapping[str, HostSession], inbox: Inbox, seconds: float) -> None:
        super().__init__(sessions, inbox)
        self.stop_requested_on = ""
        self._end = time.monotonic() + seconds

    def _pending(self) -> Collection[str]:
        return self.sessions.keys()

    def _is_finished(self) -> bool:
        return bool(self.stop_requested_on) or time.monotonic() >= self._end

    def _tick(self) -> float:
        return max(0.0, min(TICK_S, self._end - time.monotonic()))

    def _on_frame(self, name: str, frame: Frame) -> bool:
        if frame.data.get("stop_requested"):
            self.stop_requested_on = name
        return False


def enqueue_signal(inbox: Inbox, signum: int) -> None:
    inbox.put((None, Frame("signal", {"signal": signum})))


def signal_pending(inbox: Inbox) -> bool:
    """Return whether a signal came that nothing has taken; empties the inbox."""
    with contextlib.suppress(queue.Empty):
        while True:
            session, frame = inbox.get(timeout=0)
            if session is None and frame.kind == "signal":
                return True
    return False


def leave_on_signal(monitor: AttemptMonitor, signals: list[int]) -> None:
    """Have every signal end the monitor and nothing else, and be noted among `signals`."""

    def leave(signum: int) -> bool:
        signals.append(signum)
        monitor.leave()
        return False

    monitor.on_interrupt = leave


def workdir_request(spec: Spec, node: Node) -> FactsRequest:
    return FactsRequest(node=node.name, workdir=spec.cluster.workdir, skip_launch_facts=True)


@contextlib.contextmanager
def open_host_pool(spec: Spec, console: Console) -> Iterator[HostPool]:
    """Open a pool for one verb, in whose inbox the signals that ask this process to end arrive."""
    inbox = Inbox()
    previous_handlers = {
        signum: signal.signal(signum, lambda number, _: enqueue_signal(inbox, number))
        for signum in SIGNALS
        if signal.getsignal(signum) != signal.SIG_IGN  # as nohup has it
    }
    pool = HostPool(spec, console, inbox)
    try:
        yield pool
    finally:
        console.close(deadline(FLUSH_TIMEOUT_S))
        pool.close()
        for signum, handler in previous_handlers.items():
            signal.signal(signum, handler)


def deadline(seconds: float) -> Callable[[], bool]:
    """Return a function that returns whether this many seconds have passed since the call."""
    deadline_at = time.monotonic() + seconds
    return lambda: time.monotonic() >= deadline_at
