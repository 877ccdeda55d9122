"""Keeping contact with the hosts of an attempt: who is out of our reach, and who counts as lost.

A broken wire changes nothing for the ranks: it is opened again. The hosts' supervisors watch over
each other; where they cannot, because their hub is out of reach, this does.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from runner.control.attempt.node import NodeWatch, Reopener
from runner.control.attempt.stop import LADDER_S, Callbacks, Chronicle, Stop
from runner.control.rpc.connector import BOOT_S
from runner.core.local_pause import Awake
from runner.core.model.spec import Spec
from runner.core.protocol.events import HostLost, HostSilent

START_S = 30.0
"""How long a host may take from its order to a running supervisor."""

LAST_S = 60.0
"""How long the last host that is awaited may be out of our reach; `attach` finds it later."""

PATIENCE_S = 600.0
"""How long somebody who joined waits when no host of the run can be reached any more."""

PING_S = 2.0
"""The longest time between two pings; short limits on silence make it shorter."""

DRAIN_S = 15.0
"""How long a host that has ended may take to send the next piece of its logs."""


class Vigil:
    """Contact with all nodes of an attempt.

    Attributes:
        fresh: Whether it is our own launch, and not one that was joined.
        acts: Whether anything may be stopped.
        tolerates: Takes a node that was lost, and why; returns whether the run goes on without it,
            and somebody else sees to its return.
        rejoins: Whether a node that was lost is left to those.
        hurries: Whether another attempt follows if this one fails: then nobody waits for the word
            of a host that was lost, which takes no part in it.
    """

    def __init__(
        self,
        spec: Spec,
        nodes: Mapping[str, NodeWatch],
        reopener: Reopener,
        stop: Stop,
        chronicle: Chronicle,
        tell: Callbacks,
    ) -> None:
        self.fresh = self.acts = True
        self.tolerates: Callable[[NodeWatch, str], bool] = lambda *_: False
        self.rejoins: Callable[[NodeWatch], bool] = lambda _: False
        self.hurries = False
        self._spec, self._nodes, self._reopener = spec, nodes, reopener
        self._stop, self._chronicle, self._tell = stop, chronicle, tell
        self._next_ping = 0.0
        self._awake = Awake()

    def tick(self) -> None:
        """Say that we are here, and see who is not."""
        now = time.monotonic()
        judge = self._awake.look(now)
        if now >= self._next_ping:
            limits = (self._spec.lost_s, self._spec.disconnect_s or PING_S * 5)
            self._next_ping = now + min(PING_S, *(limit / 5 for limit in limits))
            for node in self._nodes.values():
                if node.session is not None and not node.session.closed:
                    node.session.request("ping")
        for node in self._nodes.values():
            if node.there and not self._tell.console_full():
                node.follower.resume(node.there)
            if judge and not node.settled:
                self._check(node, now)

    def _check(self, node: NodeWatch, now: float) -> None:
        wire = node.session
        limit = self._spec.lost_s if wire is None or wire.met else max(self._spec.lost_s, BOOT_S)
        if wire is not None and wire.silence > limit:
            self.part(node, f"nothing was heard from it for {wire.silence:.0f} s")
        if node.ended:
            self._drain(node, now)
        elif now > self._stop.deadline:
            node.settled = True
            self._chronicle.note(node.name, HostSilent("it did not say that nothing is left"))
        elif node.lost or not self.fresh:
            self._wait_for(node)
        elif node.silence > self._patience(node):
            self.lose(node, f"nothing was heard from it for {node.silence:.0f} s")
        elif not node.going and node.there and now > node.fed + START_S:
            self.lose(node, f"its supervisor did not start within {START_S:.0f} s")
        if not node.settled and not self.rejoins(node):
            self._reopener.look_after(node, now)

    def _others(self, node: NodeWatch) -> list[NodeWatch]:
        return [other for other in self._nodes.values() if other is not node]

    def _patience(self, node: NodeWatch) -> float:
        """Return how long a host may be out of our reach before it counts as lost.

        While the others keep in touch with it, for as long as they do: they tell. While its
        supervisor goes on without us, as long as that; else `lost_s`, since only we can tell the
        others.
        """
        others = self._others(node)
        if node.joined and any(each.joined and each.there and not each.ended for each in others):
            return float("inf")
        if not node.joined and others:
            return self._spec.lost_s
        if others and all(each.settled for each in others):
            return max(self._spec.lost_s, LAST_S)
        alone = self._spec.disconnect_s
        return alone + self._spec.grace_s + LADDER_S if alone and not node.kept else float("inf")

    def _wait_for(self, node: NodeWatch) -> None:
        """Wait for a host that is out of reach while the run is on elsewhere: it may come back."""
        others = self._others(node)
        if node.lost:
            limit = 0.0 if all(each.settled or each.lost for each in others) else float("inf")
        elif any(each.there and not each.settled for each in others):
            limit = float("inf")
        elif not node.going:
            limit = self._spec.lost_s
        elif others and all(each.settled for each in others):
            limit = max(self._spec.lost_s, LAST_S)
        else:
            limit = PATIENCE_S
        given_up = self.hurries and node.lost and any(not each.lost for each in others)
        known = given_up or self.rejoins(node) or (node.away is not None and node.away.tries > 0)
        if node.away and known and node.silence > limit:
            node.settled = True
            if not node.lost:
                why = f"it could not be reached: {node.away.reason}"
                self._tell.say(f"{node.name}: {why}")
                self._chronicle.note(node.name, HostSilent(why))

    def _drain(self, node: NodeWatch, now: float) -> None:
        """Wait for the logs of a host that has ended, but not for ever."""
        patience = self._spec.lost_s if node.away else DRAIN_S
        if not self._tell.console_full() and now - node.fed > patience:
            node.settled = True
            self._tell.say(f"{node.name}: the last of its logs did not arrive")

    def part(self, node: NodeWatch, reason: str) -> None:
        """A wire broke: the run goes on there, and so do the tries for a new wire."""
        node.drop()
        if node.settled:
            return
        if node.away is not None:  # the new one broke before anything came of it
            node.away.failed(reason)
            return
        node.depart(reason)
        if not node.ended:
            self._tell.state(node.name, "reconnecting")
            self._tell.say(f"{node.name}: {reason}; trying to reach it again")

    def lose(self, node: NodeWatch, reason: str) -> None:
        """A host was lost: stop the others, unless they can do without it.

        It is told when it can be reached again.
        """
        if self.tolerates(node, reason):
            return
        node.lost = True
        self._tell.state(node.name, "lost")
        self._chronicle.note(node.name, HostLost(reason), node.heard)
        node.drop()
        if node.away is None:
            node.depart(reason)
        if self.fresh and self.acts:  # who only joined may be the one who is out of reach
            self._stop.begin(f"lost {node.name}: {reason}")
