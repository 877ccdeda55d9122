"""Keeping contact with the hosts of an attempt: who is out of our reach, and who counts as lost.

A broken wire changes nothing for the ranks: it is opened again. The hosts' supervisors watch over
each other; where they cannot, because their hub is out of reach, this does.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from runner.control.attempt.event_log import EventLog
from runner.control.attempt.node import NodeState
from runner.control.attempt.observer import RunObserver
from runner.control.attempt.reconnect import Reconnector
from runner.control.attempt.stop import STOP_TIMEOUT_S, StopSequence
from runner.control.rpc.facts import BOOT_TIMEOUT_S
from runner.core.local_pause import LocalPauseDetector
from runner.core.model.spec import Spec
from runner.core.protocol.events import EndUnverified, HostLost

START_TIMEOUT_S = 30.0
"""How long a host may take from its order to a running supervisor."""

LAST_HOST_TIMEOUT_S = 60.0
"""How long the last host that is awaited may be out of our reach; `attach` finds it later."""

ATTACH_TIMEOUT_S = 600.0
"""How long somebody who joined waits when no host of the run can be reached any more."""

PING_S = 2.0
"""The longest time between two pings; short limits on silence make it shorter."""

DRAIN_TIMEOUT_S = 15.0
"""How long a host that has ended may take to send the next piece of its logs."""


class FailureDetector:
    """Contact with all nodes of an attempt.

    Attributes:
        owns_run: Whether it is our own launch, and not one that was joined.
        may_stop: Whether anything may be stopped.
        can_continue_without: Takes a node that was lost, and why; returns whether the run goes on
            without it, and somebody else sees to its return.
        awaits_rejoin: Whether a node that was lost is left to those.
        relaunch_follows: Whether another attempt follows if this one fails: then nobody waits for
            the word of a host that was lost, which takes no part in it.
    """

    def __init__(
        self,
        spec: Spec,
        nodes: Mapping[str, NodeState],
        reconnector: Reconnector,
        stop: StopSequence,
        event_log: EventLog,
        observer: RunObserver,
    ) -> None:
        self.owns_run = self.may_stop = True
        self.can_continue_without: Callable[[NodeState, str], bool] = lambda *_: False
        self.awaits_rejoin: Callable[[NodeState], bool] = lambda _: False
        self.relaunch_follows = False
        self._spec, self._nodes, self._reconnector = spec, nodes, reconnector
        self._stop, self._event_log, self._observer = stop, event_log, observer
        self._next_ping = 0.0
        self._pause_detector = LocalPauseDetector()

    def tick(self) -> None:
        """Say that we are here, and see who is not."""
        now = time.monotonic()
        may_judge = self._pause_detector.may_judge(now)
        if now >= self._next_ping:
            limits = (self._spec.lost_s, self._spec.disconnect_s or PING_S * 5)
            self._next_ping = now + min(PING_S, *(limit / 5 for limit in limits))
            for node in self._nodes.values():
                if node.session is not None and not node.session.closed:
                    node.session.request("ping")
        for node in self._nodes.values():
            if node.live_session and not self._observer.console_full():
                node.tailer.resume_held_back(node.live_session)
            if may_judge and not node.finished:
                self._check(node, now)

    def _check(self, node: NodeState, now: float) -> None:
        session = node.session
        limit = (
            self._spec.lost_s
            if session is None or session.handshake_done
            else max(self._spec.lost_s, BOOT_TIMEOUT_S)
        )
        if session is not None and session.idle_s > limit:
            self.on_disconnect(node, f"nothing was heard from it for {session.idle_s:.0f} s")
        if node.ended:
            self._drain(node, now)
        elif now > self._stop.deadline:
            node.finished = True
            self._event_log.record_own(
                node.name, EndUnverified("it did not say that nothing is left")
            )
        elif node.lost or not self.owns_run:
            self._await_return(node)
        elif node.heartbeat_age > self._timeout(node):
            self.declare_lost(node, f"nothing was heard from it for {node.heartbeat_age:.0f} s")
        elif (
            not node.supervisor_started
            and node.live_session
            and now > node.last_data + START_TIMEOUT_S
        ):
            self.declare_lost(node, f"its supervisor did not start within {START_TIMEOUT_S:.0f} s")
        if not node.finished and not self.awaits_rejoin(node):
            self._reconnector.reconnect_if_due(node.node, node.backoff, now)

    def _others(self, node: NodeState) -> list[NodeState]:
        return [other for other in self._nodes.values() if other is not node]

    def _timeout(self, node: NodeState) -> float:
        """Return how long a host may be out of our reach before it counts as lost.

        While the others keep in touch with it, for as long as they do: they tell. While its
        supervisor goes on without us, as long as that; else `lost_s`, since only we can tell the
        others.
        """
        others = self._others(node)
        if node.hub_joined and any(
            other.hub_joined and other.live_session and not other.ended for other in others
        ):
            return float("inf")
        if not node.hub_joined and others:
            return self._spec.lost_s
        if others and all(other.finished for other in others):
            return max(self._spec.lost_s, LAST_HOST_TIMEOUT_S)
        lease_s = self._spec.disconnect_s
        return (
            lease_s + self._spec.grace_s + STOP_TIMEOUT_S
            if lease_s and not node.detached
            else float("inf")
        )

    def _await_return(self, node: NodeState) -> None:
        """Wait for a host that is out of reach while the run is on elsewhere: it may come back."""
        others = self._others(node)
        if node.lost:
            limit = 0.0 if all(other.finished or other.lost for other in others) else float("inf")
        elif any(other.live_session and not other.finished for other in others):
            limit = float("inf")
        elif not node.supervisor_started:
            limit = self._spec.lost_s
        elif others and all(other.finished for other in others):
            limit = max(self._spec.lost_s, LAST_HOST_TIMEOUT_S)
        else:
            limit = ATTACH_TIMEOUT_S
        given_up = self.relaunch_follows and node.lost and any(not other.lost for other in others)
        may_give_up = (
            given_up
            or self.awaits_rejoin(node)
            or (node.backoff is not None and node.backoff.tries > 0)
        )
        if node.backoff and may_give_up and node.heartbeat_age > limit:
            node.finished = True
            if not node.lost:
                reason = f"it could not be reached: {node.backoff.reason}"
                self._observer.message(f"{node.name}: {reason}")
                self._event_log.record_own(node.name, EndUnverified(reason))

    def _drain(self, node: NodeState, now: float) -> None:
        """Wait for the logs of a host that has ended, but not for ever."""
        timeout_s = self._spec.lost_s if node.backoff else DRAIN_TIMEOUT_S
        if not self._observer.console_full() and now - node.last_data > timeout_s:
            node.finished = True
            self._observer.message(f"{node.name}: the last of its logs did not arrive")

    def on_disconnect(self, node: NodeState, reason: str) -> None:
        """A wire broke: the run goes on there, and so do the tries for a new wire."""
        node.close()
        if node.finished:
            return
        if node.backoff is not None:  # the new one broke before anything came of it
            node.backoff.on_failure(reason)
            return
        node.disconnect(reason)
        if not node.ended:
            self._observer.node_status(node.name, "reconnecting")
            self._observer.message(f"{node.name}: {reason}; trying to reach it again")

    def declare_lost(self, node: NodeState, reason: str) -> None:
        """A host was lost: stop the others, unless they can do without it.

        It is told when it can be reached again.
        """
        if self.can_continue_without(node, reason):
            return
        node.lost = True
        self._observer.node_status(node.name, "lost")
        self._event_log.record_own(node.name, HostLost(reason), node.last_heard)
        node.close()
        if node.backoff is None:
            node.disconnect(reason)
        if self.owns_run and self.may_stop:  # who only joined may be the one who is out of reach
            self._stop.begin(f"lost {node.name}: {reason}")
