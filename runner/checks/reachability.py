"""Whether every node reaches every other, as gloo and NCCL will: each blocked pair is a hang."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from runner.checks.context import Case
from runner.core.model.finding import Finding, Level
from runner.core.model.network_probe import Contact, Outcome, Probed

SLOWER, SLOW_S = 10, 0.002
"""So many times the usual round trip, and more than so many seconds, is worth a word."""

TWO = 2
"""Of so many nodes, a pair is all."""

NAMED = 8
"""So many pairs are named one by one."""

AGAIN = "python -m runner check, once more; if it stays so, log in there"

WORDS = {
    Outcome.REFUSED: "refused, though it listens",
    Outcome.TIMED_OUT: "timed out",
    Outcome.NO_ROUTE: "no route",
    Outcome.UNREACHABLE: "unreachable",
    Outcome.RESET: "reset on the way",
    Outcome.STRANGER: "another machine or program answers",
    Outcome.MUTE: "connected, but nothing is said",
    Outcome.STALLED: "small packets pass, large packets vanish on the way",
    Outcome.FAILED: "failed",
}

ODD = {Outcome.STRANGER, Outcome.REFUSED}
"""Somebody is there, and is not who is meant."""

Pair = tuple[str, str]


@dataclass
class _Pairs:
    """Who tried whom; a pair is (from, to).

    Attributes:
        probed: What was found.
        tried: How each try of a node's own port went.
        store: How each try of the master's port went, by who tried.
        bad: The tries that failed and are in no finding yet.
    """

    probed: Probed
    tried: dict[Pair, Contact] = field(default_factory=dict)
    store: dict[str, Contact] = field(default_factory=dict)
    bad: dict[Pair, Contact] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, found in self.probed.of.items():
            for contact in found.contacts:
                if contact.target == self.probed.store:
                    self.store[name] = contact
                else:
                    self.tried[name, contact.target.node] = contact
        self.bad = _bad(self.tried)
        for name, contact in self.store.items():
            pair = name, contact.target.node
            if pair in self.bad and contact.outcome is Outcome.STRANGER:
                self.bad[pair] = contact  # it says more than that nobody listens

    @property
    def doubles(self) -> set[str]:
        """Nodes with the address of one before them: `network` says so."""
        first = {each.address: name for name, each in reversed(self.probed.endpoints.items())}
        return {name for name, each in self.probed.endpoints.items() if first[each.address] != name}

    @property
    def nodes(self) -> list[str]:
        """Those that tried, or were tried."""
        seen = {name for pair in self.tried for name in pair}
        return [name for name in self.probed.endpoints if name in seen]


def pairs(case: Case) -> Iterator[Finding]:
    """An error for each pair that does not reach each other, a warning for a slow way."""
    probed = case.probed
    if probed is None:
        return
    for name, why in probed.silent.items():
        yield Finding(
            Level.WARNING, name, f"answered before, but not about the network: {why}", AGAIN
        )
    for name, end in probed.endpoints.items():
        if not end.address:
            what = "it is not known by which of its addresses the others reach it: not tried"
            yield Finding(Level.WARNING, name, what, f"set cluster.nodes.{name}.interface")
    found = _Pairs(probed)
    if not found.tried:
        return
    yield from _late(found)
    whole = not found.bad and not _bad_store(found)
    yield from _nobody(found)
    doubles = found.doubles
    found.bad = {pair: each for pair, each in found.bad.items() if doubles.isdisjoint(pair)}
    yield from _cut_off(found)
    yield from _single(found)
    yield from _master_port(found)
    yield from _slow(found)
    if whole:
        yield Finding(Level.FINE, "", _fine(found))


def _bad(contacts: Mapping[Pair, Contact]) -> dict[Pair, Contact]:
    return {pair: each for pair, each in contacts.items() if each.outcome is not Outcome.REACHED}


def _late(found: _Pairs) -> Iterator[Finding]:
    targets = {target.node for target in found.probed.targets}
    missing = [
        (name, node)
        for name in found.probed.of
        for node in targets
        if node != name and (name, node) not in found.tried
    ]
    if missing:
        example = " → ".join(missing[0])
        what = f"tries that did not end in time: {len(missing)}, such as {example}"
        yield Finding(Level.WARNING, "", what, AGAIN)


def _nobody(found: _Pairs) -> Iterator[Finding]:
    """Nothing passes at all: one finding, however many nodes there are."""
    if len(found.nodes) > TWO and len(found.bad) == len(found.tried):
        example = next(iter(found.bad.values()))
        what = f"no node reaches another at {example.target.address} and the like: "
        yield Finding(Level.ERROR, "", what + _why(found.bad.values()), _hint(found, example))
        found.bad.clear()


def _cut_off(found: _Pairs) -> Iterator[Finding]:
    """Nodes that no other reaches, or that reach no other."""
    if len(found.nodes) <= TWO:
        return
    into, out = _by_node(found.tried, 1), _by_node(found.tried, 0)
    begun = dict(found.bad)
    for name in found.nodes:
        unreached, stuck = (bool(each[name]) and each[name] <= begun.keys() for each in (into, out))
        gone = sorted((into[name] if unreached else set()) | (out[name] if stuck else set()))
        if not gone:
            continue
        first = begun[min(into[name] if unreached else gone)]
        why = _why(begun[pair] for pair in gone)
        what = f"it reaches no other node: {why}"
        if unreached:
            at, interface = first.target, found.probed.endpoints[name].interface
            more = ", and it reaches none" if stuck else ""
            what = f"no node reaches it at {at.address}, port {at.port} ({interface}){more}: {why}"
        yield Finding(Level.ERROR, name, what, _hint(found, first))
        for pair in gone:
            found.bad.pop(pair, None)


def _by_node(pairs: Iterable[Pair], at: int) -> defaultdict[str, set[Pair]]:
    found = defaultdict[str, set[Pair]](set)
    for pair in pairs:
        found[pair[at]].add(pair)
    return found


def _single(found: _Pairs) -> Iterator[Finding]:
    """What is left, both directions as one."""
    place = {name: at for at, name in enumerate(found.nodes)}
    left = sorted({tuple(sorted(pair, key=place.__getitem__)) for pair in found.bad})
    for one, other in left[:NAMED]:
        there, back = found.bad.get((one, other)), found.bad.get((other, one))
        contact = min(filter(None, (there, back)), key=lambda each: each.outcome not in ODD)
        if there and back:
            what = f"{one} and {other} cannot reach each other: {_why([there, back])}"
            what += f" at {there.target.address} and {back.target.address}"
        else:
            target = contact.target
            what = f"{one if there else other} cannot reach {target.node} "
            what += f"at {target.address}:{target.port}: {_why([contact])}"
        both = all(
            each.outcome is Outcome.REACHED
            for pair, each in found.tried.items()
            if len({one, other} & {*pair}) == 1
        )
        what += "; both reach the others" if both and len(found.nodes) > TWO else ""
        yield Finding(Level.ERROR, one if there else other, what, _hint(found, contact))
    if more := left[NAMED:]:
        what = f"{len(more)} more pairs cannot, such as {' and '.join(more[0])}"
        yield Finding(Level.ERROR, "", what, "as for those that are named")


def _master_port(found: _Pairs) -> Iterator[Finding]:
    """The port of torch's store, where another port of the master is reached."""
    open_to, bad = _open(found), _bad_store(found)
    if not bad:
        return
    first = next(iter(bad.values()))
    at = first.target
    who = "no node" if len(bad) == len(open_to) > 1 else f"{_some(bad)} cannot"
    reach = "reaches" if who == "no node" else "reach"
    what = f"{who} {reach} its port {at.port} ({_why(bad.values())}), while other ports are open"
    hint = (
        f"open it to {_subnet(found, at.node)} there, or name those that are: "
        "cluster.master_port=29500-29600"
    )
    yield Finding(Level.ERROR, at.node, f"cluster.master_port: {what}", hint)


def _open(found: _Pairs) -> dict[str, Contact]:
    """Return how those who reach the master's other port found that of the store."""
    reached = found.tried.keys() - _bad(found.tried).keys()
    return {n: each for n, each in found.store.items() if (n, each.target.node) in reached}


def _bad_store(found: _Pairs) -> dict[str, Contact]:
    return {n: each for n, each in _open(found).items() if each.outcome is not Outcome.REACHED}


def _slow(found: _Pairs) -> Iterator[Finding]:
    """A host whose round trips are far longer than is usual here, or else a pair."""
    trips = _trips(found)
    if len(found.nodes) <= TWO or not trips:
        return
    usual = sorted(trips.values())[(len(trips) - 1) // 4]  # most of those without one slow host
    slow = {pair for pair, trip in trips.items() if trip > max(SLOW_S, SLOWER * usual)}
    counts = Counter(name for pair in slow for name in pair)
    hint = "compare its cable, switch port and interface: ethtool, ip -s link, there"
    for name, count in counts.most_common():
        own = [pair for pair in trips if name in pair]
        if len(own) > 1 and count == len(own) and slow & {*own}:
            longest = max(trips[pair] for pair in own)
            what = f"round trips to it take up to {_ms(longest)}, others {_ms(usual)}"
            yield Finding(Level.WARNING, name, what, hint)
            slow -= {*own}
    for one, other in sorted(slow)[:NAMED]:
        what = f"a round trip to {other} takes {_ms(trips[one, other])}, others {_ms(usual)}"
        yield Finding(Level.WARNING, one, what, hint)


def _trips(found: _Pairs) -> dict[Pair, float]:
    """Return the round trip of each pair, of both directions the shorter."""
    place = {name: at for at, name in enumerate(found.nodes)}
    trips: dict[Pair, float] = {}
    for (one, other), contact in found.tried.items():
        if contact.outcome is Outcome.REACHED and contact.trip_s:
            pair = (one, other) if place[one] < place[other] else (other, one)
            trips[pair] = min(contact.trip_s, trips.get(pair, contact.trip_s))
    return trips


def _fine(found: _Pairs) -> str:
    trips = _trips(found).values()
    count = f"{len(found.tried)} pairs"
    if not trips:
        return count
    least, most = (_ms(each) for each in (min(trips), max(trips)))
    return f"{count}, round trips {least}" + (f" to {most}" if most != least else "")


def _ms(seconds: float) -> str:
    return f"{float(f'{max(0.01, 1000 * seconds):.2g}'):g} ms"


def _subnet(found: _Pairs, node: str) -> str:
    return found.probed.endpoints[node].subnet or "the others"


def _hint(found: _Pairs, contact: Contact) -> str:
    """Return what to do about one way in which a try fails."""
    at = contact.target
    end, subnet = found.probed.endpoints[at.node], _subnet(found, at.node)
    other = f"if another network is meant: cluster.nodes.{at.node}.interface"
    if contact.outcome is Outcome.STALLED:
        return (
            f"what passes is told by: ping -M do -s 1472 {at.address}\n"
            f"then the same MTU on all the way: ip link set dev {end.interface} mtu 1400"
        )
    if contact.outcome in ODD:
        refuses = ", or a firewall refuses" if contact.outcome is Outcome.REFUSED else ""
        return (
            f"another machine has {at.address}{refuses}; where it fails: arping {at.address}\n"
            f"{other}"
        )
    if contact.outcome is Outcome.MUTE:
        return f"it is very busy, or something between filters what is said; {AGAIN}"
    if contact.outcome in {Outcome.NO_ROUTE, Outcome.UNREACHABLE, Outcome.FAILED}:
        return f"where it fails: ip route get {at.address}\n{other}"
    return (
        "a firewall? gloo and NCCL need every port between the nodes; on every node:\n"
        f"sudo ufw allow from {subnet}\n"
        f"or: sudo firewall-cmd --zone=trusted --add-source={subnet}\n{other}"
    )


def _why(contacts: Iterable[Contact]) -> str:
    """Return in words how these ended, the usual way first."""
    counts = Counter(
        WORDS[each.outcome] + (f" ({each.detail})" if each.detail else "") for each in contacts
    )
    return ", or ".join(words for words, _ in counts.most_common(3))


def _some(names: Iterable[str]) -> str:
    first, *rest = names
    return f"{first} and {len(rest)} more" if rest else first
