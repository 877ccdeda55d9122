"""Fan-out of a release: hosts that hold it serve it to the others, in a tree.

One copy leaves this machine for a host that then serves it; whoever has got it serves it too. A
host that no holder can serve is sent it from here.
"""

from __future__ import annotations

import secrets
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
        self._token, self._lost_s = secrets.token_hex(16), lost_s
        # The only port that a launch may use is left to it.
        first, last = (0, 0) if ports.is_fixed else (ports.first, ports.last)
        self._service = {"release": release, "token": self._token, "first": first, "last": last}
        self._listening: dict[str, int] = {}  # the port of each holder, 0 if it cannot listen
        self._receivers: Counter[str] = Counter()  # of each holder, now
        self._tried: dict[str, set[str]] = defaultdict(set)  # holders, by host
        self._failures = self._successes = 0
        self._last_failure = ""
        self._is_decided = False

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
        """Have holders listen, and queued hosts receive; those that none can serve are lacking."""
        queued = [name for name, target in self._targets.items() if target.state == "queued"]
        waiting = [name for name in queued if not self._serve(name)]
        self._open_holders(waiting)
        orphans = [name for name in waiting if not self._may_be_served(name)]
        untried = [name for name in orphans if not self._tried[name]]
        for name in orphans:
            if self._tried[name] or self._is_hopeless or name == untried[0]:  # a new first holder
                target = self._targets[name]
                target.state = "lacking"
                target.fan_out_failure = target.fan_out_failure or self._last_failure

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

    def on_failed(self, name: str, reason: str) -> None:
        """Note why a host could not get the release from its holder, and queue it again."""
        target = self._targets[name]
        self._receivers[target.holder] -= 1
        target.fan_out_failure = self._last_failure = reason[:MAX_REASON]
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

    def _may_try(self, name: str, holder: str) -> bool:
        """Return whether a host may try that holder, now or later."""
        session = self._targets[holder].session
        is_live = not session.closed and session.idle_s <= self._lost_s
        can_listen = holder in self._addresses and self._listening.get(holder, 1) != 0
        tried = self._tried[name]
        is_new = holder not in tried and len(tried) < MAX_TRIES
        return is_live and can_listen and is_new and not self._is_hopeless

    def _serve(self, name: str) -> bool:
        """Have the holder with the fewest receivers serve a host; return whether one can."""
        free = [
            (self._receivers[holder], holder)
            for holder, port in self._listening.items()
            if port and self._receivers[holder] < MAX_RECEIVERS and self._may_try(name, holder)
        ]
        if free:
            self._receive(name, min(free)[1])
        return bool(free)

    def _open_holders(self, waiting: Sequence[str]) -> None:
        """Have as many hosts that hold the release begin to serve it as the waiting ones need."""
        slots = MAX_RECEIVERS * sum(t.state == "opening" for t in self._targets.values())
        for name in waiting:
            if slots:
                slots -= 1
                continue
            for holder, target in self._targets.items():
                is_new = target.state == "stored" and holder not in self._listening
                if is_new and self._may_try(name, holder):
                    target.state = "opening"
                    target.session.request("serve_release", {**self._service, "node": holder})
                    slots = MAX_RECEIVERS - 1
                    break

    def _may_be_served(self, name: str) -> bool:
        """Return whether a host may find a holder later."""
        coming = ("lacking", "opening", "receiving", "storing", "fetching", "stored")
        return any(
            target.state in coming and self._may_try(name, other)
            for other, target in self._targets.items()
        )

    def _receive(self, name: str, holder: str) -> None:
        target = self._targets[name]
        target.state, target.holder = "fetching", holder
        self._receivers[holder] += 1
        self._tried[name].add(holder)
        address, port = self._addresses[holder], self._listening[holder]
        where = {"node": holder, "address": address, "port": port, "token": self._token}
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
        "; let the hosts reach each other at the ports of cluster.master_port, or set"
        " deploy.fan_out=off"
        for reason, each in names.items()
    ]
