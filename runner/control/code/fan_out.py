"""Fan-out of a release: hosts that hold it serve it to the others, in a tree.

One copy leaves this machine for a host that then serves it; whoever has got it serves it too. A
host that no holder can serve is sent it from here.
"""

from __future__ import annotations

import bisect
import itertools
import secrets
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from runner.control.code.push_target import PushTarget
from runner.core.model.spec import PortRange
from runner.core.text import join_some

MIN_BYTES = 32 * 1_000_000
"""Less than this is sent from here to all hosts at once: what the others would wait is saved."""

MAX_RECEIVERS = 2  # of one holder at a time
MAX_TRIES = 2  # holders that a host tries
MAX_FAILURES = 4
"""After so many failures and no success the hosts are taken not to reach each other."""

CHECK_S = 0.25
"""What no state tells is looked at so often: a holder whose connection is gone, or silent."""

COMING_STATES = ("lacking", "opening", "receiving", "storing", "fetching", "stored")
"""The states of a host that may serve others later, if it does not do so now."""

MAX_REASON = 300  # characters of what a host says


class FanOut:
    """Which holder serves which host.

    `addresses` are those at which the nodes reach each other; `retention` are the fields of a
    request that store a release. A holder that was not heard for `lost_s` serves nobody.
    """

    def __init__(
        self,
        targets: Mapping[str, PushTarget],
        addresses: Mapping[str, str],
        release: str,
        ports: PortRange,
        retention: Mapping[str, int],
        lost_s: float,
    ) -> None:
        self._targets, self._addresses, self._retention = targets, addresses, retention
        self._lost_s = lost_s
        # The only port that a launch may use is left to it.
        self._ports = PortRange() if ports.is_fixed else ports
        first, last = self._ports.first, self._ports.last
        token = secrets.token_hex(16)
        self._service = {"release": release, "token": token, "first": first, "last": last}
        self._listening: dict[str, int] = {}  # the port of each holder, 0 if it cannot listen
        self._receivers: Counter[str] = Counter()  # of each holder, now
        self._tried: dict[str, set[str]] = defaultdict(set)  # holders, by host
        self._failures = self._successes = 0
        self._last_failure = ""
        self._is_decided = False
        self._settled_states: list[str] = []  # those in which the last advance changed nothing
        self._next_check = 0.0

    def hold_back(self, missing: Mapping[str, int]) -> None:
        """Have hosts wait for a holder, if that is worthwhile; `missing` is in bytes, by host.

        If there is no holder yet, one of them is not to wait: the one that lacks least.
        """
        if self._is_decided:
            return
        self._is_decided = True
        reachable = [n for n in missing if n in self._addresses and missing[n]]
        if not any(target.state == "stored" for target in self._targets.values()):
            first = min(reachable, key=missing.__getitem__, default="")
            reachable = [name for name in reachable if name != first]
        if sum(missing[name] for name in reachable) >= MIN_BYTES:
            for name in reachable:
                self._targets[name].state = "queued"

    def advance(self) -> None:
        """Have holders listen, and queued hosts receive; those that none can serve are lacking.

        Cheap if no state has changed: it is called after every frame of any host.
        """
        now, states = time.monotonic(), self._states()
        if now < self._next_check and states == self._settled_states:
            return
        queued = [name for name, target in self._targets.items() if target.state == "queued"]
        waiting = self._serve(queued)
        self._open_holders(waiting)
        self._send_from_here(waiting)
        self._settled_states = states if self._states() == states else []
        self._next_check = now + CHECK_S

    def on_listening(self, name: str, port: int, error: str = "") -> None:
        """Note the port on which a holder listens, 0 if it cannot."""
        self._targets[name].state, self._listening[name] = "stored", port
        if not port:
            self._last_failure = f"{name} cannot listen: {error}"

    def on_received(self, name: str) -> None:
        """Note that a host has the release, perhaps from its holder."""
        if self._targets[name].state == "fetching":
            self._receivers[self._targets[name].holder] -= 1
            self._successes += 1

    def on_failed(self, name: str, reason: str, *, unreachable: bool = False) -> None:
        """Note why a host could not get the release from its holder, and queue it again."""
        target = self._targets[name]
        self._receivers[target.holder] -= 1
        advice = self._advice(self._listening[target.holder]) if unreachable else ""
        target.fan_out_failure = self._last_failure = f"{reason[:MAX_REASON]}{advice}"
        target.state, target.holder = "queued", ""
        self._failures += 1

    def on_lost(self, name: str) -> None:
        """Note that a host that fetches, or is to serve, is gone."""
        self._listening[name] = 0
        if self._targets[name].state == "fetching":
            self._receivers[self._targets[name].holder] -= 1

    def close(self) -> None:
        """Have all holders end their service."""
        for name, target in self._targets.items():
            is_serving = target.state == "opening" or self._listening.get(name)
            if is_serving and not target.session.closed:
                target.session.request("stop_serving")

    @property
    def _is_hopeless(self) -> bool:
        return not self._successes and self._failures >= MAX_FAILURES

    def _advice(self, port: int) -> str:
        """Return what may help where the port of a holder cannot be reached, 0 if that is gone."""
        if not port:
            return ""
        cure = "let the hosts reach each other at the ports of cluster.master_port"
        if not self._ports.first <= port <= self._ports.last:
            cure = "set cluster.master_port to a range of ports at which the hosts reach each other"
        return f"; {cure}, or set deploy.fan_out=off"

    def _states(self) -> list[str]:
        return [target.state for target in self._targets.values()]

    def _is_live(self, name: str) -> bool:
        session = self._targets[name].session
        return not session.closed and session.idle_s <= self._lost_s

    def _may_try_more(self, name: str) -> bool:
        return len(self._tried[name]) < MAX_TRIES and not self._is_hopeless

    def _serve(self, queued: Sequence[str]) -> list[str]:
        """Have the free holders with the fewest receivers serve hosts; return those that wait."""
        free = sorted(
            (self._receivers[holder], holder)
            for holder, port in self._listening.items()
            if port and self._receivers[holder] < MAX_RECEIVERS and self._is_live(holder)
        )
        waiting: list[str] = []
        for index, name in enumerate(queued):
            if not free:
                return [*waiting, *queued[index:]]
            tried = self._tried[name]
            untried = (each for each in free if each[1] not in tried)
            chosen = next(untried, None) if self._may_try_more(name) else None
            if chosen is None:
                waiting.append(name)
                continue
            free.remove(chosen)
            count, holder = chosen
            self._receive(name, holder)
            if count + 1 < MAX_RECEIVERS:
                bisect.insort(free, (count + 1, holder))
        return waiting

    def _open_holders(self, waiting: Sequence[str]) -> None:
        """Have as many hosts that hold the release begin to serve it as the waiting ones need."""
        slots = MAX_RECEIVERS * sum(t.state == "opening" for t in self._targets.values())
        new = (  # nobody has tried these
            name
            for name, target in self._targets.items()
            if target.state == "stored" and name not in self._listening
            if name in self._addresses and self._is_live(name)
        )
        for name in waiting:
            if slots:
                slots -= 1
            elif self._may_try_more(name):
                holder = next(new, None)
                if holder is None:
                    return
                target = self._targets[holder]
                target.state = "opening"
                target.session.request("serve_release", {**self._service, "node": holder})
                slots = MAX_RECEIVERS - 1

    def _send_from_here(self, waiting: Sequence[str]) -> None:
        """Have hosts that no holder can serve, now or later, be sent the release from here."""
        coming = (
            name
            for name, target in self._targets.items()
            if target.state in COMING_STATES and self._listening.get(name, 1)
            if name in self._addresses and self._is_live(name)
        )
        first_few = set(itertools.islice(coming, MAX_TRIES))  # who may try has tried fewer
        orphans = [n for n in waiting if not self._may_try_more(n) or first_few <= self._tried[n]]
        untried = [name for name in orphans if not self._tried[name]]
        for name in orphans:
            if self._tried[name] or self._is_hopeless or name == untried[0]:  # a new first holder
                target = self._targets[name]
                target.state = "lacking"
                target.fan_out_failure = target.fan_out_failure or self._last_failure

    def _receive(self, name: str, holder: str) -> None:
        target = self._targets[name]
        target.state, target.holder = "fetching", holder
        self._receivers[holder] += 1
        self._tried[name].add(holder)
        address, port = self._addresses[holder], self._listening[holder]
        where = {"node": holder, "address": address, "port": port, "token": self._service["token"]}
        request = {"node": name, "holder": where, **self._retention}
        target.session.request("receive_release", request)


def fan_out_notes(targets: Mapping[str, PushTarget]) -> list[str]:
    """Return which hosts were sent the release from here, as no holder could serve them."""
    names: dict[str, list[str]] = defaultdict(list)
    for name, target in targets.items():
        if target.fan_out_failure and not target.holder:
            names[target.fan_out_failure].append(name)
    return [
        f"the code went from here to {join_some(each)}, which another host was to serve: {reason}"
        for reason, each in names.items()
    ]
