"""Whether the hosts' name look-ups answer, and say the same: torch's store waits for them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from ipaddress import ip_address, ip_interface

from runner.checks.context import Case, majority
from runner.core.model.facts import Facts
from runner.core.model.finding import Finding, Level
from runner.core.model.network_probe import Names, Probed

SLOW_S = 1.0
AGAIN = "python -m runner check, once more"
LINES = 4
"""So many lines for /etc/hosts are shown."""


def names(case: Case) -> Iterator[Finding]:
    """A warning for look-ups that stall a launch, an error where the master's name misleads."""
    probed = case.probed
    if probed is None or not probed.questions.addresses:
        return
    for name, why in probed.silent.items() if not probed.targets else ():  # else `pairs` says so
        yield Finding(Level.WARNING, name, f"answered before, but not about names: {why}", AGAIN)
    found = {name: told.names for name, told in probed.of.items()}
    yield from _master(case, probed, found)
    for name, told in found.items():
        if not told.asked:
            what = "its look-ups could not be timed: no process or thread could be started"
            yield Finding(Level.WARNING, name, what, f"ulimit -u on {name}")
            continue
        stalls = list(_stalls(name, told, probed))
        yield from stalls
        own = _own(name, told, probed, case.facts[name])
        if own.level is not Level.FINE or not stalls:
            yield own


def _stalls(name: str, told: Names, probed: Probed) -> Iterator[Finding]:
    """Torch's store looks up the name of each peer's address (socket.cpp, `getnameinfo`)."""
    limit_s = probed.questions.limit_s
    silent = [node for node in told.asked if told.seconds.get(node, limit_s) >= limit_s]
    slowest = max(told.seconds.values(), default=0.0)
    asks = "when it looks up the name of a node's address"
    if silent:
        what = f"no answer within {limit_s:g} s {asks}"
    elif slowest > SLOW_S:
        what = f"it takes up to {slowest:.0f} s {asks}"
    else:
        return
    what += ": torch's store stalls a launch by as much for each node"
    yield Finding(Level.WARNING, name, what, _hosts_lines(probed))


def _hosts_lines(probed: Probed) -> str:
    lines = [f"{address} {node}" for node, address in probed.questions.addresses.items()]
    more = [f"and so on, a line for each of the {len(lines)} nodes"] if len(lines) > LINES else []
    return "\n".join(["lines for /etc/hosts, on every node:", *lines[:LINES], *more])


def _own(name: str, told: Names, probed: Probed, facts: Facts) -> Finding:
    """Gloo publishes the address of the host's own name, unless GLOO_SOCKET_IFNAME is set.

    The plan sets that wherever it knows the interface.
    """
    loops = all(map(_is_loopback, told.own))
    known = probed.endpoints[name].interface or "GLOO_SOCKET_IFNAME" in facts.own_env
    if not loops:
        return Finding(Level.FINE, name, "answered at once")
    if known or not told.own_known:
        what = "its own name leads to no address of the network: harmless, the plan sets interfaces"
        return Finding(Level.FINE, name, what)
    what = f"its own name, {facts.hostname}, leads to {_shown(told.own)}: gloo would publish that"
    return Finding(Level.WARNING, name, what, f"set cluster.nodes.{name}.interface")


def _master(case: Case, probed: Probed, found: dict[str, Names]) -> Iterator[Finding]:
    """All have to meet at the same machine; there itself a loopback address will do."""
    host = probed.questions.master
    if not host:
        return
    master = next(iter(probed.endpoints))  # of those that are ready
    key = f"cluster.nodes.{master}.addr"
    owned = {
        ip_interface(text).ip
        for each in case.facts[master].interfaces
        if not each.loopback
        for text in each.addresses
    }
    others = {name: told for name, told in found.items() if name != master}
    common = majority({name: _shown(told.master) for name, told in others.items() if told.master})
    hint = f"set {key} to an address, or give each node the same line for {host} in /etc/hosts"
    for name, told in found.items():
        if not told.asked:
            continue
        where = f"{key}: {host} "
        if not told.master:
            why = told.master_error or f"no answer within {probed.questions.limit_s:g} s"
            yield Finding(Level.ERROR, name, f"{where}cannot be looked up there: {why}", hint)
        elif name == master or owned & {ip_address(each) for each in told.master}:
            continue
        elif any(map(_is_loopback, told.master)):
            what = f"{where}leads to {_shown(told.master)} there, so to itself and not to {master}"
            yield Finding(Level.ERROR, name, what, hint)
        elif _shown(told.master) != common:
            what = f"{where}leads to {_shown(told.master)} there, and to {common} on most"
            yield Finding(Level.ERROR, name, what, hint)
        else:
            what = f"{where}leads to {common}, which {master} does not have: right only behind NAT"
            yield Finding(Level.WARNING, name, what, hint)


def _is_loopback(address: str) -> bool:
    return ip_address(address).is_loopback


def _shown(addresses: Sequence[str]) -> str:
    return ", ".join(sorted(addresses)) or "nothing"
