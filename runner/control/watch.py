"""One attempt while it is on: send the orders, follow, keep contact, stop all when one fails.

One thread, one inbox. Nothing here waits for a host without a deadline, and a host that is lost
is asked over a new connection to end its part before it is named as unproven.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from runner.control.bundle import Tasks
from runner.control.connect import Reach
from runner.control.follow import Follower
from runner.control.session import Inbox, Session
from runner.core.codec import encode
from runner.core.events import (
    Body,
    Ended,
    Event,
    HostLost,
    HostSilent,
    PortTaken,
    ProgramExited,
    RankExited,
    RankStarted,
    StopAsked,
)
from runner.core.facts import Facts
from runner.core.plan import NodePlan, Plan
from runner.core.spec import Spec
from runner.core.states import State
from runner.core.verdict import Observed, describe_exit
from runner.core.wire import Frame

START_S = 30.0
"""How long a host may take from its order to a running supervisor."""

TICK_S = 0.05

ENOUGH = 2
"""After so many signals the user wants no more logs either."""

PING_S = 2.0
"""The longest time between two pings; short limits on silence make it shorter."""

LADDER_S = 12.0
"""What the hosts' own ladder may take beyond the grace (`host.ending.KILL_S`, and a margin)."""

DRAIN_S = 5.0
"""How long a host that has ended may take to send the next piece of its logs."""


@dataclass
class NodeWatch:
    """What is known of one node of the attempt."""

    share: NodePlan
    session: Session
    follower: Follower
    going: bool = False
    ended: bool = False
    lost: bool = False
    settled: bool = False
    fed: float = field(default_factory=time.monotonic)
    started: set[int] = field(default_factory=set)


@dataclass(frozen=True)
class Callbacks:
    """Where a watch reports to: the record, the logs, and the person."""

    record: Callable[[Event], None]
    log: Callable[[str, str, str, bytes], None]
    say: Callable[[str], None]
    phase: Callable[[str], None]
    state: Callable[[str, str], None]
    console_full: Callable[[], bool]
    mute: Callable[[], None]


class Watch:
    """One attempt of a run, from its orders to nothing left."""

    def __init__(
        self,
        spec: Spec,
        plan: Plan,
        reach: Reach,
        sessions: dict[str, Session],
        inbox: Inbox,
        callbacks: Callbacks,
    ) -> None:
        self.spec, self.plan = spec, plan
        self.observed: list[Observed] = []
        self.port_taken = False
        self.refused = False
        self._reach, self._inbox, self._tell = reach, inbox, callbacks
        self._sessions = sessions
        self._nodes: dict[str, NodeWatch] = {}
        self._stopping = False
        self._signals = 0
        self._deadline = float("inf")
        self._next_ping = self._next_tick = 0.0
        self._seq = 0
        self._announced = False

    def start(
        self,
        facts: Mapping[str, Facts],
        tasks: Tasks | None,
        events_offsets: Mapping[str, int],
    ) -> None:
        """Send every host its order."""
        secrets = {name: secret.reveal() for name, secret in self.spec.secrets.items()}
        for share in self.plan.nodes:
            name = share.node
            sink = self._sink(name)
            follower = Follower(share, sink, events_offsets.get(name, 0))
            self._nodes[name] = NodeWatch(share, self._sessions[name], follower)
            missing = tasks if tasks and not facts[name].tasks_held else None
            data = {"order": encode(share.order), "secrets": secrets}
            if missing:
                data["tasks"] = missing.header()
            self._sessions[name].request("go", data, missing.payload if missing else b"")
        self._began = time.monotonic()
        self._tell.phase("starting")
        for name, node in self._nodes.items():
            self._tell.state(name, "starting")
            if node.session.closed:
                self._lose(node, "the connection to it broke before it got its order")

    def run(self) -> None:
        """Return when every host has settled: ended with its logs here, lost, or silent."""
        while not all(node.settled for node in self._nodes.values()):
            with contextlib.suppress(queue.Empty):
                self._take(*self._inbox.get(timeout=TICK_S))
            if time.monotonic() >= self._next_tick:
                self._next_tick = time.monotonic() + TICK_S
                self._tick()

    @property
    def events_offsets(self) -> dict[str, int]:
        """How far each host's events were read, for the next attempt."""
        return {name: node.follower.events_offset for name, node in self._nodes.items()}

    # What comes in

    def _take(self, session: Session | None, frame: Frame) -> None:
        if session is None:
            self.interrupt(int(frame.data["signal"]))
            return
        node = self._nodes[session.node.name]
        if session is not node.session:
            return
        if frame.kind == "data":
            self._data(node, frame)
        elif frame.kind == "going":
            node.going = True
            node.follower.start(session)
        elif frame.kind == "working":
            node.fed = time.monotonic()
        elif frame.kind == "refused":
            self._refused(node, str(frame.data["why"]))
        elif frame.kind == "closed":
            self._lose(node, f"the connection to it broke: {frame.data['reason']}")

    def _data(self, node: NodeWatch, frame: Frame) -> None:
        hold_back = self._tell.console_full()
        for event in node.follower.take(
            node.session,
            frame.data["id"],
            frame.payload,
            eof=frame.data["eof"],
            hold_back=hold_back,
        ):
            self._happened(node, event)
        node.fed = time.monotonic()
        if node.follower.done:
            node.settled = True

    def _refused(self, node: NodeWatch, why: str) -> None:
        if node.settled:
            return
        if node.going:
            self._lose(node, why)
            return
        node.ended = node.settled = True
        if self._stopping:
            self._note(node.share.node, Ended(State.STOPPED, why))
            return
        self.refused = True
        self._note(node.share.node, Ended(State.FAILED, f"could not start: {why}"))
        self._stop_all(f"{node.share.node} could not start: {why}")

    def _happened(self, node: NodeWatch, event: Event) -> None:
        self.observed.append(Observed(node.session.to_controller_clock(event.mono), event))
        self._tell.record(event)
        name, body = node.share.node, event.body
        if isinstance(body, RankStarted):
            node.started.add(body.rank)
            self._tell.state(name, _started(node))
            self._announce()
        elif isinstance(body, RankExited) and not body.ok:
            how = describe_exit(body.code, body.signal)
            self._stop_all(f"rank {body.rank} on {name} {how}")
        elif isinstance(body, ProgramExited) and (body.error or body.code != 0):
            how = body.error or f"torchrun {describe_exit(body.code, body.signal)}"
            self._stop_all(f"{name}: {how}")
        elif isinstance(body, PortTaken):
            self.port_taken = True
            self._stop_all(f"port {body.port} on {name} was taken")
        elif isinstance(body, Ended):
            node.ended = True
            self._tell.state(name, "ended")
            if all(other.ended for other in self._nodes.values()):
                self._tell.phase("fetching the last of the logs")
            if body.state in (State.FAILED, State.STUCK):
                self._stop_all(f"the run failed on {name}")

    def _announce(self) -> None:
        everyone = all(len(n.started) == len(n.share.ranks) for n in self._nodes.values())
        if everyone and not self._announced:
            self._announced = True
            self._tell.phase("running")
            took = time.monotonic() - self._began
            self._tell.say(f"every rank started after {took:.1f} s")

    # Keeping contact

    def _tick(self) -> None:
        now = time.monotonic()
        if now >= self._next_ping:
            self._next_ping = now + min(PING_S, self.spec.lost_s / 5, self.spec.disconnect_s / 5)
            for node in self._nodes.values():
                if not node.session.closed:
                    node.session.request("ping")
        if not self._tell.console_full():
            for node in self._nodes.values():
                node.follower.resume(node.session)
        for node in self._nodes.values():
            self._check(node, now)

    def _check(self, node: NodeWatch, now: float) -> None:
        if node.settled:
            return
        silence = now - max(node.session.heard, self._began)
        if not node.lost and silence > self.spec.lost_s:
            reason = f"nothing was heard from it for {silence:.0f} s"
            self._lose(node, reason, since=node.session.heard)
        elif not node.going and not node.lost and now > node.fed + START_S:
            self._lose(node, f"its supervisor did not start within {START_S:.0f} s")
        elif node.ended:
            if not self._tell.console_full() and now - node.fed > DRAIN_S:
                node.settled = True
                self._tell.say(f"{node.share.node}: the last of its logs did not arrive")
        elif now > self._deadline:
            node.settled = True
            self._note(node.share.node, HostSilent("it did not say that nothing is left"))

    def _lose(self, node: NodeWatch, reason: str, since: float | None = None) -> None:
        """A host was lost: stop the others, and try to end its part over a new connection."""
        if node.settled or node.lost:
            return
        if node.ended:
            node.settled = True
            return
        node.lost = True
        self._tell.state(node.share.node, "lost")
        self._note(node.share.node, HostLost(reason), since)
        node.session.close()
        self._stop_all(f"lost {node.share.node}: {reason}")
        threading.Thread(target=self._rescue, args=(node,), daemon=True, name="rescue").start()

    def _rescue(self, node: NodeWatch) -> None:
        """Open a new link (in a thread of its own), and let the inbox know it."""
        spec_node = node.session.node
        try:
            session = self._reach.open(spec_node, self._inbox)
        except Exception:  # noqa: BLE001 (it cannot be asked, for whatever reason)
            node.settled = True
            return
        node.session = self._sessions[spec_node.name] = session
        session.request("adopt", {"order": encode(node.share.order)})
        session.request("say", {"word": "kill" if self._signals > 1 else "stop"})

    # Stopping

    @property
    def may_retry(self) -> bool:
        """Whether a taken port is all that kept this attempt from its start."""
        ended = all(node.ended for node in self._nodes.values())
        return self.port_taken and ended and not self.refused and not self.interrupted

    @property
    def interrupted(self) -> bool:
        """Whether the user asked for the end."""
        return self._signals > 0

    def interrupt(self, signum: int) -> None:
        """Stop everything for the user; a second time, at once."""
        self._signals += 1
        if self._signals == 1:
            self._stop_all("interrupted", signum)
            grace = f"{self.spec.grace_s:g} s"
            self._tell.say(
                f"stopping: the ranks have up to {grace} to end; Ctrl-C again kills them now"
            )
            return
        self._deadline = time.monotonic() + LADDER_S
        if self._signals > ENOUGH:
            self._leave_logs()
        for node in self._nodes.values():
            if not node.ended and not node.session.closed:
                node.session.request("say", {"word": "kill"})
        waiting = [name for name, node in self._nodes.items() if not node.ended]
        self._tell.say(f"killing what is left on {', '.join(waiting) or 'no node'}")

    def _leave_logs(self) -> None:
        """Fetch no more of what ended hosts wrote; the stop itself is never abandoned."""
        for name, node in self._nodes.items():
            if node.ended and not node.settled:
                node.settled = True
                self._tell.say(f"{name}: the rest of its logs stays there, in cluster.workdir")

    def _stop_all(self, reason: str, signum: int = 0) -> None:
        if signum:
            self._note("", StopAsked(reason, signum))
        if self._stopping:
            return
        self._stopping = True
        self._tell.phase("stopping")
        for name, node in self._nodes.items():
            if not node.ended and not node.lost:
                self._tell.state(name, "stopping")
        self._tell.mute()
        if not signum:
            self._note("", StopAsked(reason))
            self._tell.say(f"{reason}; stopping the rest")
        self._deadline = time.monotonic() + self.spec.grace_s + LADDER_S
        for node in self._nodes.values():
            if not node.ended and not node.session.closed:
                node.session.request("say", {"word": "stop"})

    def _note(self, name: str, body: Body, since: float | None = None) -> None:
        """Record what the controller itself saw or did, about the node `name`, now or `since`."""
        now = time.monotonic()
        mono = now if since is None else since
        wall = time.time() - (now - mono)
        self._seq += 1
        event = Event(self.spec.run_id, name, self.plan.attempt, self._seq, wall, mono, body)
        self.observed.append(Observed(mono, event))
        self._tell.record(event)

    def _sink(self, name: str) -> Callable[[str, str, bytes], None]:
        return lambda source, stream, data: self._tell.log(name, source, stream, data)


def _started(node: NodeWatch) -> str:
    there, all_of_them = len(node.started), len(node.share.ranks)
    return "running" if there == all_of_them else f"{there} of {all_of_them} ranks"
