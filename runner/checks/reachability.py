"""Whether every node reaches every other, as gloo and NCCL will: each blocked pair is a hang."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from runner.checks.context import CheckContext
from runner.core.model.finding import Finding, Level
from runner.core.model.network_probe import NetworkProbe, Outcome, ProbeResult

SLOW_FACTOR, SLOW_RTT_S = 10, 0.002
"""So many times the usual round trip, and more than so many seconds, is worth a word."""

ONE_PAIR = 2
"""Of so many nodes, a pair is all."""

MAX_LISTED_PAIRS = 8
"""So many pairs are named one by one."""

CHECK_AGAIN = "python -m runner check, once more; if it stays so, log in there"

OUTCOME_TEXT = {
    Outcome.REFUSED: "refused, though it listens",
    Outcome.TIMED_OUT: "timed out",
    Outcome.NO_ROUTE: "no route",
    Outcome.UNREACHABLE: "unreachable",
    Outcome.RESET: "reset on the way",
    Outcome.WRONG_PEER: "another machine or program answers",
    Outcome.NO_GREETING: "connected, but nothing is said",
    Outcome.STALLED: "small packets pass, large packets vanish on the way",
    Outcome.FAILED: "failed",
}

WRONG_LISTENER = {Outcome.WRONG_PEER, Outcome.REFUSED}
"""Somebody is there, and is not who is meant."""

Pair = tuple[str, str]


@dataclass
class _PairResults:
    """Who tried whom; a pair is (from, to).

    Attributes:
        probe: What was found.
        by_pair: How each try of a node's own port went.
        store_by_node: How each try of the master's port went, by who tried.
        failed: The tries that failed and are in no finding yet.
    """

    probe: NetworkProbe
    by_pair: dict[Pair, ProbeResult] = field(default_factory=dict)
    store_by_node: dict[str, ProbeResult] = field(default_factory=dict)
    failed: dict[Pair, ProbeResult] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, host_probe in self.probe.by_node.items():
            for result in host_probe.results:
                if result.target == self.probe.store_target:
                    self.store_by_node[name] = result
                else:
                    self.by_pair[name, result.target.node] = result
        self.failed = _failed(self.by_pair)
        for name, result in self.store_by_node.items():
            pair = name, result.target.node
            if pair in self.failed and result.outcome is Outcome.WRONG_PEER:
                self.failed[pair] = result  # it says more than that nobody listens

    @property
    def duplicates(self) -> set[str]:
        """Nodes with the address of one before them: `network` says so."""
        first = {
            endpoint.address: name for name, endpoint in reversed(self.probe.endpoints.items())
        }
        return {
            name
            for name, endpoint in self.probe.endpoints.items()
            if first[endpoint.address] != name
        }

    @property
    def nodes(self) -> list[str]:
        """Those that tried, or were tried."""
        tried = {name for pair in self.by_pair for name in pair}
        return [name for name in self.probe.endpoints if name in tried]


def pairs(context: CheckContext) -> Iterator[Finding]:
    """An error for each pair that does not reach each other, a warning for a slow way."""
    probe = context.network_probe
    if probe is None:
        return
    for name, reason in probe.missing_reasons.items():
        yield Finding(
            Level.WARNING,
            name,
            f"answered before, but not about the network: {reason}",
            CHECK_AGAIN,
        )
    for name, endpoint in probe.endpoints.items():
        if not endpoint.address:
            message = "it is not known by which of its addresses the others reach it: not tried"
            yield Finding(Level.WARNING, name, message, f"set cluster.nodes.{name}.interface")
    pair_results = _PairResults(probe)
    if not pair_results.by_pair:
        return
    yield from _unfinished_tries(pair_results)
    is_complete = not pair_results.failed and not _failed_store_results(pair_results)
    yield from _nothing_passes(pair_results)
    duplicates = pair_results.duplicates
    pair_results.failed = {
        pair: result for pair, result in pair_results.failed.items() if duplicates.isdisjoint(pair)
    }
    yield from _isolated_nodes(pair_results)
    yield from _broken_pairs(pair_results)
    yield from _master_port(pair_results)
    yield from _slow_pairs(pair_results)
    if is_complete:
        yield Finding(Level.OK, "", _summary_text(pair_results))


def _failed(results: Mapping[Pair, ProbeResult]) -> dict[Pair, ProbeResult]:
    return {
        pair: result for pair, result in results.items() if result.outcome is not Outcome.REACHED
    }


def _unfinished_tries(pair_results: _PairResults) -> Iterator[Finding]:
    targets = {target.node for target in pair_results.probe.targets}
    missing = [
        (name, node)
        for name in pair_results.probe.by_node
        for node in targets
        if node != name and (name, node) not in pair_results.by_pair
    ]
    if missing:
        example = " → ".join(missing[0])
        message = f"tries that did not end in time: {len(missing)}, such as {example}"
        yield Finding(Level.WARNING, "", message, CHECK_AGAIN)


def _nothing_passes(pair_results: _PairResults) -> Iterator[Finding]:
    """Nothing passes at all: one finding, however many nodes there are."""
    if len(pair_results.nodes) > ONE_PAIR and len(pair_results.failed) == len(pair_results.by_pair):
        example = next(iter(pair_results.failed.values()))
        message = f"no node reaches another at {example.target.address} and the like: "
        yield Finding(
            Level.ERROR,
            "",
            message + _reason_text(pair_results.failed.values()),
            _hint(pair_results, example),
        )
        pair_results.failed.clear()


def _isolated_nodes(pair_results: _PairResults) -> Iterator[Finding]:
    """Nodes that no other reaches, or that reach no other."""
    if len(pair_results.nodes) <= ONE_PAIR:
        return
    incoming, outgoing = _by_node(pair_results.by_pair, 1), _by_node(pair_results.by_pair, 0)
    failed_before = dict(pair_results.failed)
    for name in pair_results.nodes:
        is_unreached, reaches_none = (
            bool(direction[name]) and direction[name] <= failed_before.keys()
            for direction in (incoming, outgoing)
        )
        cut_pairs = sorted(
            (incoming[name] if is_unreached else set())
            | (outgoing[name] if reaches_none else set())
        )
        if not cut_pairs:
            continue
        first = failed_before[min(incoming[name] if is_unreached else cut_pairs)]
        reason = _reason_text(failed_before[pair] for pair in cut_pairs)
        message = f"it reaches no other node: {reason}"
        if is_unreached:
            target, interface = first.target, pair_results.probe.endpoints[name].interface
            addition = ", and it reaches none" if reaches_none else ""
            message = f"no node reaches it at {target.address}, port {target.port} ({interface}){addition}: {reason}"
        yield Finding(Level.ERROR, name, message, _hint(pair_results, first))
        for pair in cut_pairs:
            pair_results.failed.pop(pair, None)


def _by_node(pairs: Iterable[Pair], position: int) -> defaultdict[str, set[Pair]]:
    by_node = defaultdict[str, set[Pair]](set)
    for pair in pairs:
        by_node[pair[position]].add(pair)
    return by_node


def _broken_pairs(pair_results: _PairResults) -> Iterator[Finding]:
    """What is left, both directions as one."""
    order = {name: position for position, name in enumerate(pair_results.nodes)}
    remaining = sorted({tuple(sorted(pair, key=order.__getitem__)) for pair in pair_results.failed})
    for one, other in remaining[:MAX_LISTED_PAIRS]:
        forward, backward = (
            pair_results.failed.get((one, other)),
            pair_results.failed.get((other, one)),
        )
        result = min(
            filter(None, (forward, backward)),
            key=lambda other_result: other_result.outcome not in WRONG_LISTENER,
        )
        if forward and backward:
            message = (
                f"{one} and {other} cannot reach each other: {_reason_text([forward, backward])}"
            )
            message += f" at {forward.target.address} and {backward.target.address}"
        else:
            target = result.target
            message = f"{one if forward else other} cannot reach {target.node} "
            message += f"at {target.address}:{target.port}: {_reason_text([result])}"
        are_others_reached = all(
            other_result.outcome is Outcome.REACHED
            for pair, other_result in pair_results.by_pair.items()
            if len({one, other} & {*pair}) == 1
        )
        message += (
            "; both reach the others"
            if are_others_reached and len(pair_results.nodes) > ONE_PAIR
            else ""
        )
        yield Finding(Level.ERROR, one if forward else other, message, _hint(pair_results, result))
    if unlisted := remaining[MAX_LISTED_PAIRS:]:
        message = f"{len(unlisted)} more pairs cannot, such as {' and '.join(unlisted[0])}"
        yield Finding(Level.ERROR, "", message, "as for those that are named")


def _master_port(pair_results: _PairResults) -> Iterator[Finding]:
    """The port of torch's store, where another port of the master is reached."""
    open_results, failed = _open_store_results(pair_results), _failed_store_results(pair_results)
    if not failed:
        return
    first = next(iter(failed.values()))
    target = first.target
    who = "no node" if len(failed) == len(open_results) > 1 else f"{_first_and_more(failed)} cannot"
    reach = "reaches" if who == "no node" else "reach"
    message = f"{who} {reach} its port {target.port} ({_reason_text(failed.values())}), while other ports are open"
    hint = (
        f"open it to {_subnet(pair_results, target.node)} there, or name those that are: "
        "cluster.master_port=29500-29600"
    )
    yield Finding(Level.ERROR, target.node, f"cluster.master_port: {message}", hint)


def _open_store_results(pair_results: _PairResults) -> dict[str, ProbeResult]:
    """Return how those who reach the master's other port found that of the store."""
    reached = pair_results.by_pair.keys() - _failed(pair_results.by_pair).keys()
    return {
        node: result
        for node, result in pair_results.store_by_node.items()
        if (node, result.target.node) in reached
    }


def _failed_store_results(pair_results: _PairResults) -> dict[str, ProbeResult]:
    return {
        node: result
        for node, result in _open_store_results(pair_results).items()
        if result.outcome is not Outcome.REACHED
    }


def _slow_pairs(pair_results: _PairResults) -> Iterator[Finding]:
    """A host whose round trips are far longer than is usual here, or else a pair."""
    rtts = _rtts(pair_results)
    if len(pair_results.nodes) <= ONE_PAIR or not rtts:
        return
    usual = sorted(rtts.values())[(len(rtts) - 1) // 4]  # most of those without one slow host
    slow = {pair for pair, rtt in rtts.items() if rtt > max(SLOW_RTT_S, SLOW_FACTOR * usual)}
    counts = Counter(name for pair in slow for name in pair)
    hint = "compare its cable, switch port and interface: ethtool, ip -s link, there"
    for name, count in counts.most_common():
        own_pairs = [pair for pair in rtts if name in pair]
        if len(own_pairs) > 1 and count == len(own_pairs) and slow & {*own_pairs}:
            longest = max(rtts[pair] for pair in own_pairs)
            message = (
                f"round trips to it take up to {_format_ms(longest)}, others {_format_ms(usual)}"
            )
            yield Finding(Level.WARNING, name, message, hint)
            slow -= {*own_pairs}
    for one, other in sorted(slow)[:MAX_LISTED_PAIRS]:
        message = f"a round trip to {other} takes {_format_ms(rtts[one, other])}, others {_format_ms(usual)}"
        yield Finding(Level.WARNING, one, message, hint)


def _rtts(pair_results: _PairResults) -> dict[Pair, float]:
    """Return the round trip of each pair, of both directions the shorter."""
    order = {name: position for position, name in enumerate(pair_results.nodes)}
    rtts: dict[Pair, float] = {}
    for (one, other), result in pair_results.by_pair.items():
        if result.outcome is Outcome.REACHED and result.rtt_s:
            pair = (one, other) if order[one] < order[other] else (other, one)
            rtts[pair] = min(result.rtt_s, rtts.get(pair, result.rtt_s))
    return rtts


def _summary_text(pair_results: _PairResults) -> str:
    rtts = _rtts(pair_results).values()
    count = f"{len(pair_results.by_pair)} pairs"
    if not rtts:
        return count
    shortest, longest = (_format_ms(rtt) for rtt in (min(rtts), max(rtts)))
    return f"{count}, round trips {shortest}" + (f" to {longest}" if longest != shortest else "")


def _format_ms(seconds: float) -> str:
    return f"{float(f'{max(0.01, 1000 * seconds):.2g}'):g} ms"


def _subnet(pair_results: _PairResults, node: str) -> str:
    return pair_results.probe.endpoints[node].subnet or "the others"


def _hint(pair_results: _PairResults, result: ProbeResult) -> str:
    """Return what to do about one way in which a try fails."""
    target = result.target
    endpoint, subnet = pair_results.probe.endpoints[target.node], _subnet(pair_results, target.node)
    interface_hint = f"if another network is meant: cluster.nodes.{target.node}.interface"
    if result.outcome is Outcome.STALLED:
        return (
            f"what passes is told by: ping -M do -s 1472 {target.address}\n"
            f"then the same MTU on all the way: ip link set dev {endpoint.interface} mtu 1400"
        )
    if result.outcome in WRONG_LISTENER:
        refuses = ", or a firewall refuses" if result.outcome is Outcome.REFUSED else ""
        return (
            f"another machine has {target.address}{refuses}; where it fails: arping {target.address}\n"
            f"{interface_hint}"
        )
    if result.outcome is Outcome.NO_GREETING:
        return f"it is very busy, or something between filters what is said; {CHECK_AGAIN}"
    if result.outcome in {Outcome.NO_ROUTE, Outcome.UNREACHABLE, Outcome.FAILED}:
        return f"where it fails: ip route get {target.address}\n{interface_hint}"
    return (
        "a firewall? gloo and NCCL need every port between the nodes; on every node:\n"
        f"sudo ufw allow from {subnet}\n"
        f"or: sudo firewall-cmd --zone=trusted --add-source={subnet}\n{interface_hint}"
    )


def _reason_text(results: Iterable[ProbeResult]) -> str:
    """Return in words how these ended, the usual way first."""
    counts = Counter(
        OUTCOME_TEXT[result.outcome] + (f" ({result.detail})" if result.detail else "")
        for result in results
    )
    return ", or ".join(text for text, _ in counts.most_common(3))


def _first_and_more(names: Iterable[str]) -> str:
    first, *rest = names
    return f"{first} and {len(rest)} more" if rest else first
