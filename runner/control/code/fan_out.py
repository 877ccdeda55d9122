"""Fan-out of a release: hosts that hold it serve it to the others, in a tree.

One copy leaves this machine for a host that then serves it; whoever has got it serves it too. A
host that no holder can serve is sent it from here.
"""

from __future__ import annotations

import secrets
from collections import Counter, defaultdict
from collections.abc import Mapping

from runner.control.code.push_target import PushTarget
from runner.core.model.spec import PortRange
from runner.core.text import join_some

MIN_BYTES = 32 * 1_000_000
"""Less than this is sent from here to all hosts at once: what the others would wait is saved."""

MAX_RECEIVERS = 2  # of one holder at a time
MAX_TRIES = 2  # holders that a host tries
MAX_FAILURES = 4
"""After so many failures and no success the hosts are taken not to reach each other."""


class FanOut:
    """Which holder serves which host.

    `addresses` are those at which the nodes reach each other; `retention` are the fields of a
    request that store a release.
    """

    def __init__(
        self,
        targets: Mapping[str, PushTarget],
        addresses: Mapping[str, str],
        release: str,
        ports: PortRange,
        retention: Mapping[str, int],
    ) -> None:
        self._targets, self._addresses, self._retention = targets, addresses, retention
        self._token = secrets.token_hex(16)
        self._service = {
            "release": release,
            "token": self._token,
            "first": ports.first,
            "last": ports.last,
        }
        self._listening: dict[str, int] = {}  # the port of each holder, 0 if it cannot listen
        self._receivers: Counter[str] = Counter()  # of each holder, now
        self._tried: dict[str, set[str]] = defaultdict(set)  # holders, by host
        self._failures = self._successes = 0
        self._is_decided = False

    def hold_back(self, missing: Mapping[str, int]) -> None:
        """Have hosts wait for a holder, if that is worthwhile; `missing` is in bytes, by host.

        If there is no holder yet, one of them is not to wait: the one that lacks least.
        """
        if self._is_decided:
            return
        self._is_decided = True
        reachable = [name for name in missing if name in self._addresses]
        if not any(target.state == "stored" for target in self._targets.values()):
            first = min(reachable, key=lambda name: self._cost(name, missing[name]), default="")
            reachable = [name for name in reachable if name != first]
        if sum(missing[name] for name in reachable) >= MIN_BYTES:
            for name in reachable:
                self._targets[name].state = "queued"

    def advance(self) -> None:
        """Have holders listen, and queued hosts receive; those that none can serve are lacking."""
        queued = [name for name, target in self._targets.items() if target.state == "queued"]
        if queued:
            self._open_holders(len(queued))
        orphans = []
        for name in queued:
            if holder := self._free_holder(name):
                self._receive(name, holder)
            elif not self._may_be_served(name):
                orphans.append(name)
        untried = [name for name in orphans if not self._tried[name]]
        for name in orphans:
            if self._tried[name] or self._is_hopeless or name == untried[0]:  # a new first holder
                self._targets[name].state = "lacking"

    def on_listening(self, name: str, port: int) -> None:
        """Note the port on which a holder listens, 0 if it cannot."""
        self._targets[name].state, self._listening[name] = "stored", port

    def on_end(self, name: str, failure: str = "") -> None:
        """Note that a host has the release, or why it could not get it from its holder."""
        target = self._targets[name]
        if target.state != "fetching":
            return
        self._receivers[target.holder] -= 1
        if failure:
            target.fan_out_failure, target.state, target.holder = failure, "queued", ""
            self._failures += 1
        else:
            self._successes += 1

    def on_lost(self, name: str) -> None:
        """Note that a host is gone."""
        self._listening[name] = 0
        if self._targets[name].state == "fetching":
            self._receivers[self._targets[name].holder] -= 1

    def close(self) -> None:
        """Have all holders end their service."""
        for name, port in self._listening.items():
            if port:
                self._targets[name].session.request("stop_serving")

    @property
    def _is_hopeless(self) -> bool:
        return not self._successes and self._failures >= MAX_FAILURES

    def _cost(self, name: str, missing: int) -> tuple[bool, int]:
        """Return what a copy from here to a host costs, to be compared."""
        return self._targets[name].session.node.transport != "local", missing

    def _open_holders(self, wanted: int) -> None:
        free = sum(
            MAX_RECEIVERS - self._receivers[n] for n, port in self._listening.items() if port
        )
        free += MAX_RECEIVERS * sum(t.state == "opening" for t in self._targets.values())
        for name, target in self._targets.items():
            is_new = name in self._addresses and name not in self._listening
            if free < wanted and target.state == "stored" and is_new:
                target.state = "opening"
                target.session.request("serve_release", {**self._service, "node": name})
                free += MAX_RECEIVERS

    def _free_holder(self, name: str) -> str:
        """Return the holder with the fewest receivers that a host has not tried, "" for none."""
        if self._is_hopeless or len(self._tried[name]) >= MAX_TRIES:
            return ""
        free = [
            (self._receivers[holder], holder)
            for holder, port in self._listening.items()
            if port and holder not in self._tried[name] and self._receivers[holder] < MAX_RECEIVERS
        ]
        return min(free)[1] if free else ""

    def _may_be_served(self, name: str) -> bool:
        """Return whether a host may find a holder later."""
        if self._is_hopeless or len(self._tried[name]) >= MAX_TRIES:
            return False
        coming = ("lacking", "opening", "receiving", "storing", "fetching", "stored")
        return any(
            target.state in coming
            and other in self._addresses
            and other not in self._tried[name]
            and self._listening.get(other, 1)
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
        for reason, each in names.items()
    ]
