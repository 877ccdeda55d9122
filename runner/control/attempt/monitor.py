"""One attempt while it is on: send the orders or join, follow, keep contact, stop all if one fails.

One thread, one inbox. A broken wire changes nothing for the ranks: it is opened again, and every
file goes on at its byte.
"""

from __future__ import annotations

import contextlib
import queue
import signal
import time
from collections.abc import Callable, Container, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from runner.control.attempt.admission import Admission, Joining
from runner.control.attempt.elastic import Elastic
from runner.control.attempt.failure_detector import Vigil
from runner.control.attempt.log_tail import Follower
from runner.control.attempt.node import Away, NodeWatch, Reopener
from runner.control.attempt.peer_status import Accord
from runner.control.attempt.start import Orders
from runner.control.attempt.stop import Callbacks, Chronicle, Stop
from runner.control.rpc.connector import Reach
from runner.control.rpc.session import Inbox, Session
from runner.core.codec import encode
from runner.core.model.facts import Facts
from runner.core.model.spec import Spec
from runner.core.outcome.exits import describe_exit
from runner.core.outcome.verdict import Observed
from runner.core.planning.build_plan import Plan
from runner.core.protocol.events import (
    Cause,
    Ended,
    Event,
    HostSilent,
    PortTaken,
    ProgramExited,
    RankExited,
    RankStarted,
    Stopping,
)
from runner.core.protocol.frames import Frame
from runner.core.protocol.states import State

TICK_S = 0.05
JOIN_S = 15.0
"""How long hosts may take to say whether they reach each other (see `host.touch.APART_S`)."""

KEEP_S = 2.0
"""How long the hosts may take to confirm that they need nobody."""


class Watch:
    """One attempt of a run, from its orders to nothing left.

    Attributes:
        started: Whether every rank runs, or ran.
        on_interrupt: Says of a signal whether it shall stop the run; None for any.
        left: Whether the user left, and the run goes on.
        hung_up: Whether it was the user's terminal that left.
        accord: What the hosts have settled among themselves.
    """

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
        self.port_taken = self.refused = False
        self.started = self.left = self.hung_up = False
        self._inbox, self._tell = inbox, callbacks
        self._sessions = sessions
        self._nodes: dict[str, NodeWatch] = {}
        self._chronicle = Chronicle(spec.run_id, plan.attempt, callbacks.record)
        self._stop = Stop(spec, self._nodes, callbacks, self._chronicle)
        self._vigil = Vigil(
            spec, self._nodes, Reopener(reach, inbox), self._stop, self._chronicle, callbacks
        )
        self._reach = reach
        self._elastic = Elastic(
            lambda: self.plan, self._nodes, self._stop, self._vigil, self._chronicle, callbacks
        )
        self._orders: Orders | None = None
        self._reopened = False
        self._next_tick = 0.0
        self._leave_at = float("inf")
        self._started_at = 0.0
        self._began = time.monotonic()
        self.accord = Accord(plan, self._nodes, self._stop, callbacks)
        self.on_interrupt: Callable[[int], bool] | None = None

    def start(
        self,
        facts: Mapping[str, Facts],
        orders: Orders,
        record: bytes,
        admission: Admission | None = None,
        *,
        hurries: bool = False,
    ) -> None:
        """Send every host its order.

        Args:
            facts: Of every node.
            orders: What goes with the order of every host.
            record: What every host is to have on record of the whole run, packed.
            admission: How nodes that are not there yet, or come back, are taken in; None for not.
            hurries: Whether another attempt follows if this one fails.
        """
        self._vigil.hurries = hurries
        self._orders = orders
        self.accord.expect(orders.standby)
        self._meet(logs=True)
        if admission is not None:
            joining = Joining(admission, self._reach, self._inbox, self._tell.state)
            missing = [n.name for n in admission.spec.nodes if n.name not in self._nodes]
            joining.expect(missing, "it was left out at the start")
            self._elastic.joining = joining
        told = {name: node.share.order for name, node in self._nodes.items()}
        for name, order in {**told, **orders.standby}.items():
            orders.send(order, self._sessions[name], facts[name], record)
        self._tell.phase("starting")
        for name in self._nodes:
            self._tell.state(name, "starting")

    def join(
        self,
        *,
        logs: bool = True,
        begin: Mapping[str, float] = MappingProxyType({}),
        ranks: Container[int] | None = None,
        observe: bool = False,
        age: float = 0.0,
    ) -> None:
        """Follow a run that is on, or over; hosts without a session are tried again and again.

        To `observe` is to change nothing: such a reader stops no run, and keeps none alive.
        `logs`, `begin` and `ranks` are those of the `Follower`; `age` is how long the run has
        been on, in seconds.
        """
        self._vigil.fresh, self._vigil.acts = False, not observe
        self._meet(logs=logs, begin=begin, ranks=ranks)
        self._began -= age
        self._tell.phase("joining")
        for node in self._nodes.values():
            if node.session is None:
                node.away = Away("it could not be reached", node.heard)
                self._tell.state(node.name, "not reached")
            else:
                self._adopt(node, node.session)

    def run(self, *, detach: bool = False) -> None:
        """Return when every host has settled: ended with its logs here, lost, or silent.

        Or, to `detach`, once every rank runs and the hosts know what they need of us.
        """
        while not all(node.settled for node in self._nodes.values()) and not self.left:
            with contextlib.suppress(queue.Empty):
                self._take(*self._inbox.get(timeout=TICK_S))
            if time.monotonic() >= self._next_tick:
                self._next_tick = time.monotonic() + TICK_S
                self._vigil.tick()
                self._elastic.tick(time.monotonic())
            leaving = self._leave_at < float("inf")
            if detach and self.stopping:  # our own launch stays to see the end
                self._leave_at = float("inf")
            elif detach and not leaving and self._in_touch_all:
                self.detach()
            elif leaving and (self.accord.kept or time.monotonic() >= self._leave_at):
                self.leave()
        if not (self.left or self.accord.decides or self.accord.onward):
            self._dismiss_spares()

    @property
    def stopping(self) -> bool:
        """Whether all of it is to end."""
        return self._stop.wanted is not None

    def leave(self) -> None:
        """Have `run` return, and the run go on."""
        self.left = True

    def detach(self) -> None:
        """Leave once the hosts know that the run is to go on without any controller."""
        self._leave_at = time.monotonic() + KEEP_S
        for node in self._nodes.values():
            begins = node.late and not node.going  # the hub will tell it
            if node.there and not node.kept and not begins:
                node.there.request("say", {"word": "keep"})
        self._say_to_spares({"word": "keep"}, but=self.accord.coming)

    def _dismiss_spares(self) -> None:
        """End what stood by for this attempt: the hub may be gone before all of it came there."""
        stop = {"word": "stop", "reason": "the attempt is over", "cause": Cause.PEER.value}
        self._say_to_spares(stop)

    def _say_to_spares(self, what: dict[str, str], but: Container[str] = ()) -> None:
        for name in self._orders.standby if self._orders else ():
            session = self._sessions.get(name)
            if session is not None and name not in but:
                session.request("say", what)

    @property
    def _in_touch_all(self) -> bool:
        """Whether every rank runs, and every host has reached the hub, or said that it cannot."""
        if not self.started:
            return False
        return self.accord.settled or time.monotonic() - self._started_at > JOIN_S

    def _meet(self, *, logs: bool, **chosen: Any) -> None:
        by_name = {node.name: node for node in self.spec.nodes}
        self._began = time.monotonic()
        for share in self.plan.nodes:
            name = share.node
            follower = Follower(share, self._sink(name), logs=logs, **chosen)
            session = self._sessions.get(name)
            self._nodes[name] = NodeWatch(share, by_name[name], follower, session)

    # What comes in

    def _take(self, session: Session | None, frame: Frame) -> None:
        if session is None:
            self._told_by_user(frame)
            return
        node = self._nodes.get(session.node.name)
        if frame.kind == "arrived":
            self._arrived(session, frame.data["facts"])
        elif frame.kind == "opened":
            self._opened(node, session)
        elif node is None:
            self.accord.of_spare(session, frame)
        elif session is node.session:
            self._take_of(node, session, frame)

    def _take_of(self, node: NodeWatch, session: Session, frame: Frame) -> None:
        if frame.kind == "data":
            self._data(node, session, frame)
        elif frame.kind == "going":
            self._going(node, session)
        elif frame.kind == "working":
            node.fed = time.monotonic()
        elif frame.kind == "refused":
            self._refused(node, str(frame.data["why"]))
        elif frame.kind == "closed":
            self._vigil.part(node, f"the connection to it broke: {frame.data['reason']}")

    def _opened(self, node: NodeWatch | None, session: Session) -> None:
        if node is None or node.away is None:  # it was for an attempt that is over
            session.close()
            return
        self._reopened = True
        self._sessions[node.name] = node.session = session
        self._adopt(node, session)

    def _adopt(self, node: NodeWatch, session: Session) -> None:
        claim = self._vigil.fresh and not node.going
        session.request(
            "adopt",
            {"order": encode(node.share.order), "claim": claim, "quiet": not self._vigil.acts},
        )
        session.request("ping")
        self._stop.say_to(session)

    def _going(self, node: NodeWatch, session: Session) -> None:
        if node.away is not None:
            away, node.away = node.away, None
            node.back, node.before = time.monotonic(), away
            if self._vigil.fresh or away.tries:
                apart = time.monotonic() - away.since
                self._tell.say(f"{node.name}: connected again after {apart:.0f} s")
            self._tell.state(node.name, node.progress)
        node.going = True
        node.fed = time.monotonic()
        node.follower.start(session)

    def _data(self, node: NodeWatch, session: Session, frame: Frame) -> None:
        if "error" in frame.data:
            self._tell.say(f"{node.name}: the end of a log cannot be read: {frame.data['error']}")
        hold_back = self._tell.console_full()
        for event in node.follower.take(
            session,
            frame.data["id"],
            frame.data["offset"],
            frame.payload,
            eof=frame.data["eof"],
            hold_back=hold_back,
        ):
            self._happened(node, session, event)
        node.fed = time.monotonic()
        if node.follower.done:
            node.settled = True

    def _refused(self, node: NodeWatch, why: str) -> None:
        if node.settled:
            return
        if node.going:  # its folder is gone
            self._vigil.lose(node, why)
            node.settled = True
            return
        if self._elastic.refused(node, why):
            return
        node.ended = node.settled = True
        if node.there:  # in case it begins all the same
            node.there.request("say", {"word": "stop", "reason": why, "cause": Cause.PEER.value})
        if not self._vigil.fresh:
            self._tell.say(f"{node.name}: {why}")
            self._chronicle.note(node.name, HostSilent(why))
        elif self._stop.wanted is not None:
            self._chronicle.note(node.name, Ended(State.STOPPED, why))
        else:
            self.refused = True
            self._chronicle.note(node.name, Ended(State.FAILED, f"could not start: {why}"))
            self._stop_all(f"{node.name} could not start: {why}")

    def _happened(self, node: NodeWatch, session: Session, event: Event) -> None:
        at = session.to_controller_clock(event.mono, event.wall)
        self._chronicle.heard(at, event)
        name, body = node.name, event.body
        if self._elastic.heed(node, body, at):
            return
        if isinstance(body, RankStarted):
            node.starts(body.rank, body.master)
            self._tell.state(name, node.progress)
            self._announce()
        elif isinstance(body, RankExited) and not body.ok:
            how = body.error or describe_exit(body.code, body.signal)
            self._stop_all(f"rank {body.rank} on {name} {how}")
        elif isinstance(body, ProgramExited) and (body.error or body.code != 0):
            how = body.error or f"{self.plan.launcher} {describe_exit(body.code, body.signal)}"
            self._stop_all(f"{name}: {how}")
        elif isinstance(body, PortTaken):
            self.port_taken = True
            self._stop_all(f"port {body.port} on {name} was taken")
        elif isinstance(body, Stopping):
            self._stop_all(body.reason, cause=body.cause)
        elif isinstance(body, Ended):
            self._ended(node, body)
        elif why := self.accord.heed(node, body):
            self._stop_all(why)

    def _arrived(self, session: Session, facts: Facts) -> None:
        """Take in a node that is there now, if the run is to go on."""
        admitted = self._elastic.admitted(session, facts)
        if admitted is None or self._orders is None:
            session.close()
            return
        name, (self.plan, record) = session.node.name, admitted
        node, share = self._nodes.get(name), self.plan.of(name)
        if node is None:
            follower = Follower(share, self._sink(name))
            node = NodeWatch(share, session.node, follower, session, late=True)
            self._nodes[name] = node
        else:
            share = replace(share, order=replace(share.order, again=node.orders))
            node.come_back(share, session)
        self._sessions[name] = session
        self._orders.send(node.share.order, session, facts, record)
        self._tell.state(name, "starting")
        self._tell.say(f"{name} is there; torch takes it in")

    def _ended(self, node: NodeWatch, body: Ended) -> None:
        node.ended = True
        self._tell.state(node.name, "ended")
        if all(other.ended for other in self._nodes.values()):
            self._tell.phase("fetching the last of the logs")
        if body.state in (State.FAILED, State.STUCK):
            self._stop_all(f"the run failed on {node.name}")

    def _announce(self) -> None:
        there = (node for node in self._nodes.values() if not node.lost)
        everyone = all(len(node.started) == node.share.size for node in there)
        if everyone and not self.started:
            self.started, self._started_at = True, time.monotonic()
            took = time.monotonic() - self._began
            self._tell.phase("running", took)
            if self._vigil.fresh:
                self._tell.say(f"every rank started after {took:.1f} s")

    # Stopping

    @property
    def may_retry(self) -> bool:
        """Whether a taken port is all that kept this attempt from its start."""
        ended = all(node.ended for node in self._nodes.values())
        whole = not self.refused and not self._reopened  # a new link has asked no facts
        return self.port_taken and ended and whole and not self.interrupted

    @property
    def interrupted(self) -> bool:
        """Whether the user asked for the end."""
        return self._stop.signals > 0

    @property
    def observed(self) -> list[Observed]:
        """What happened, on our clock."""
        return self._chronicle.observed

    def stop_for(self, reason: str) -> None:
        """Stop everything because the user asked for it elsewhere than by a signal."""
        self._stop_all(reason, cause=Cause.USER)

    def seconds(self, began: float) -> float:
        """Return how long the run took or takes, `began` being in seconds since 1970."""
        if all(node.ended for node in self._nodes.values()):
            ends = [seen.event.wall for seen in self.observed if isinstance(seen.event.body, Ended)]
            return max(0.0, max(ends, default=time.time()) - began)
        return max(0.0, time.time() - began)

    def _told_by_user(self, frame: Frame) -> None:
        if frame.kind == "answer":
            word = frame.data["word"]
            if word == "stop":
                self.stop_for("told to stop by its user")
                self._stop.signals = max(1, self._stop.signals)  # as Ctrl-C would at a launch
            elif word == "detach":
                self.detach()
            else:
                self.leave()
        elif frame.kind == "unfit":
            self._elastic.unfit(str(frame.data["node"]), str(frame.data["why"]))
        elif self.on_interrupt is None or self.on_interrupt(int(frame.data["signal"])):
            self.interrupt(int(frame.data["signal"]))

    def interrupt(self, signum: int) -> None:
        """Stop everything for the user; a second time, at once.

        A terminal that was closed asks for nothing: the run goes on, until `disconnect_s`, if
        all of it has begun.
        """
        if signum == signal.SIGHUP and (self.started or not self._vigil.fresh):
            self.hung_up = True
            self.leave()
            return
        self._stop.by_signal(signum)

    def _stop_all(self, reason: str, cause: Cause = Cause.PEER) -> None:
        if self._vigil.acts:
            self._stop.begin(reason, cause=cause)

    def _sink(self, name: str) -> Callable[[str, str, int, bytes], None]:
        return lambda source, stream, offset, data: self._tell.log(
            name, source, stream, offset, data
        )
