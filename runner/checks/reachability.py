"""Check of the reachability of every node from every other, as gloo and NCCL need it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar

from runner.checks.base import CheckContext, check, error, ok, warning
from runner.core.model.network_probe import NetworkProbe, Outcome, ProbeResult
from runner.core.model.results import Finding
from runner.core.planning.endpoints import interface_problems

SLOW_FACTOR, SLOW_RTT_S = 10, 0.002
"""A round trip is slow beyond this multiple of the usual one, and beyond these seconds."""

ONE_PAIR = 2  # the number of nodes of which a pair is the whole cluster
MAX_LISTED_PAIRS = 8  # the number of pairs to name one by one
CHECK_AGAIN = "check again; if nothing changes, log in there"

OUTCOME_TEXT = {
    Outcome.REFUSED: "refused, though it listens",
    Outcome.TIMED_OUT: "timed out",
    Outcome.NO_ROUTE: "no route",
    Outcome.UNREACHABLE: "unreachable",
    Outcome.RESET: "reset on the way",
    Outcome.WRONG_PEER: "another machine or program answers",
    Outcome.NO_GREETING: "connected, but no greeting came",
    Outcome.STALLED: "small packets pass, large packets vanish on the way",
    Outcome.FAILED: "failed",
}

WRONG_LISTENER = {Outcome.WRONG_PEER, Outcome.REFUSED}  # another machine has the address

Pair = tuple[str, str]
K = TypeVar("K")


class _Tries:
    """The connection tests between nodes; a pair is (from, to)."""

    def __init__(self, probe: NetworkProbe) -> None:
        self.probe = probe
        self.by_pair: dict[Pair, ProbeResult] = {}  # the tests of each node's own port
        self.store_by_node: dict[str, ProbeResult] = {}  # those of the master's, by who tried
        for name, host_probe in self.probe.by_node.items():
            for result in host_probe.results:
                if result.target == self.probe.store_target:
                    self.store_by_node[name] = result
                else:
                    self.by_pair[name, result.target.node] = result
        self.failed = _not_reached(self.by_pair)  # those that are in no finding yet
        for name, result in self.store_by_node.items():
            pair = name, result.target.node
            if pair in self.failed and result.outcome is Outcome.WRONG_PEER:
                self.failed[pair] = result  # it says more than a refusal

    @property
    def duplicates(self) -> set[str]:
        """Nodes with the address of one before them, which `network` reports."""
        endpoints = self.probe.endpoints.items()
        first = {endpoint.address: name for name, endpoint in reversed(endpoints)}
        return {name for name, endpoint in endpoints if first[endpoint.address] != name}

    @property
    def nodes(self) -> list[str]:
        """The nodes at either end of a test."""
        tried = {name for pair in self.by_pair for name in pair}
        return [name for name in self.probe.endpoints if name in tried]


@check(110)
def pairs(context: CheckContext) -> Iterator[Finding]:
    """Report an error for each pair that cannot connect; warn of slow connections."""
    probe = context.network_probe
    if probe is None:
        return
    for name, reason in probe.missing_reasons.items():
        message = f"answered before, but its network tests failed: {reason}"
        yield warning(name, message, CHECK_AGAIN)
    nodes = {node.name: node for node in context.spec.nodes}
    for name, endpoint in probe.endpoints.items():
        is_known = endpoint.address or any(interface_problems(nodes[name], context.facts[name]))
        if not is_known:  # nor has `network` an error of it
            message = "not tested: the address by which other nodes reach it is unknown"
            yield warning(name, message, f"set cluster.nodes.{name}.interface")
    tries = _Tries(probe)
    if not tries.by_pair:
        return
    yield from _unfinished_tries(tries)
    is_complete = not tries.failed and not _not_reached(_store_results(tries))
    yield from _nothing_passes(tries)
    duplicates = tries.duplicates
    for pair in [pair for pair in tries.failed if not duplicates.isdisjoint(pair)]:
        del tries.failed[pair]
    yield from _isolated_nodes(tries)
    yield from _broken_pairs(tries)
    yield from _master_port(tries)
    yield from _slow_pairs(tries)
    if is_complete:
        yield ok("", _summary_text(tries))


def _not_reached(results: Mapping[K, ProbeResult]) -> dict[K, ProbeResult]:
    return {key: each for key, each in results.items() if each.outcome is not Outcome.REACHED}


def _unfinished_tries(tries: _Tries) -> Iterator[Finding]:
    targets = {target.node for target in tries.probe.targets}
    missing = [
        (name, node)
        for name in tries.probe.by_node
        for node in targets
        if node != name and (name, node) not in tries.by_pair
    ]
    if missing:
        example = " → ".join(missing[0])
        message = f"tests that did not end in time: {len(missing)}, such as {example}"
        yield warning("", message, CHECK_AGAIN)


def _nothing_passes(tries: _Tries) -> Iterator[Finding]:
    """Report one error if no connection works at all."""
    if len(tries.nodes) > ONE_PAIR and len(tries.failed) == len(tries.by_pair):
        example = next(iter(tries.failed.values()))
        message = f"no node reaches another at {example.target.address} and the like: "
        yield error("", message + _reason_text(tries.failed.values()), _hint(tries, example))
        tries.failed.clear()


def _isolated_nodes(tries: _Tries) -> Iterator[Finding]:
    """Report nodes that no other reaches, or that reach no other."""
    if len(tries.nodes) <= ONE_PAIR:
        return
    incoming, outgoing = _by_node(tries.by_pair, 1), _by_node(tries.by_pair, 0)
    failed_before = dict(tries.failed)
    for name in tries.nodes:
        is_unreached, reaches_none = (
            bool(direction[name]) and direction[name] <= failed_before.keys()
            for direction in (incoming, outgoing)
        )
        unreached = incoming[name] if is_unreached else set()
        cut_pairs = sorted(unreached | (outgoing[name] if reaches_none else set()))
        if not cut_pairs:
            continue
        first = failed_before[min(unreached or cut_pairs)]
        message = "it reaches no other node"
        if is_unreached:
            target, interface = first.target, tries.probe.endpoints[name].interface
            message = f"no node reaches it at {target.address}, port {target.port} ({interface})"
            message += ", and it reaches none" if reaches_none else ""
        message += f": {_reason_text(failed_before[pair] for pair in cut_pairs)}"
        yield error(name, message, _hint(tries, first))
        for pair in cut_pairs:
            tries.failed.pop(pair, None)


def _by_node(pairs: Iterable[Pair], position: int) -> defaultdict[str, set[Pair]]:
    by_node = defaultdict[str, set[Pair]](set)
    for pair in pairs:
        by_node[pair[position]].add(pair)
    return by_node


def _broken_pairs(tries: _Tries) -> Iterator[Finding]:
    """Report the remaining failures, both directions as one."""
    order = {name: position for position, name in enumerate(tries.nodes)}
    remaining = sorted({tuple(sorted(pair, key=order.__getitem__)) for pair in tries.failed})
    not_reached = _not_reached(tries.by_pair)
    for one, other in remaining[:MAX_LISTED_PAIRS]:
        forward, backward = tries.failed.get((one, other)), tries.failed.get((other, one))
        failed = [each for each in (forward, backward) if each]
        result = min(failed, key=lambda each: each.outcome not in WRONG_LISTENER)
        reason, target = _reason_text(failed), result.target
        if forward and backward:
            message = f"it and {other} cannot reach each other: {reason}"
            message += f" at {forward.target.address} and {backward.target.address}"
        else:
            message = f"cannot reach {target.node} at {target.address}:{target.port}: {reason}"
        others_fail = any(len({one, other} & {*pair}) == 1 for pair in not_reached)
        if not others_fail and len(tries.nodes) > ONE_PAIR:
            message += "; both reach the others"
        yield error(one if forward else other, message, _hint(tries, result))
    if unlisted := remaining[MAX_LISTED_PAIRS:]:
        message = f"{len(unlisted)} more pairs cannot, such as {' and '.join(unlisted[0])}"
        yield error("", message, "do as for the pairs named above")


def _master_port(tries: _Tries) -> Iterator[Finding]:
    """Report a blocked port of torch's store where another port of the master is open."""
    results = _store_results(tries)
    failed = _not_reached(results)
    if not failed:
        return
    first = next(iter(failed.values()))
    target = first.target
    more = f" and {len(failed) - 1} more" if len(failed) > 1 else ""
    who = f"{next(iter(failed))}{more} cannot reach"
    if len(failed) == len(results) > 1:
        who = "no node reaches"
    reason = _reason_text(failed.values())
    message = f"{who} its port {target.port} ({reason}), while other ports are open"
    hint = (
        f"open it to {_subnet(tries, target.node)} there, or name open ports: "
        "cluster.master_port=29500-29600"
    )
    yield error(target.node, f"cluster.master_port: {message}", hint)


def _store_results(tries: _Tries) -> dict[str, ProbeResult]:
    """Return the tests of the store's port by nodes that reach another port of the master."""
    reached = tries.by_pair.keys() - _not_reached(tries.by_pair).keys()
    by_node = tries.store_by_node.items()
    return {node: result for node, result in by_node if (node, result.target.node) in reached}


def _slow_pairs(tries: _Tries) -> Iterator[Finding]:
    """Warn of a host, or else of a pair, whose round trips are far longer than the usual one."""
    rtts = _rtts(tries)
    if len(tries.nodes) <= ONE_PAIR or not rtts:
        return
    usual = sorted(rtts.values())[(len(rtts) - 1) // 4]  # most of those without one slow host
    slow = {pair for pair, rtt in rtts.items() if rtt > max(SLOW_RTT_S, SLOW_FACTOR * usual)}
    counts = Counter(name for pair in slow for name in pair)
    hint = "check its cable, switch port and interface: ethtool, ip -s link"
    for name, count in counts.most_common():
        own_pairs = [pair for pair in rtts if name in pair]
        if len(own_pairs) > 1 and count == len(own_pairs) and slow & {*own_pairs}:
            longest = max(rtts[pair] for pair in own_pairs)
            message = f"round trips to it take up to {_format_ms(longest)}"
            yield warning(name, f"{message}, others {_format_ms(usual)}", hint)
            slow -= {*own_pairs}
    for one, other in sorted(slow)[:MAX_LISTED_PAIRS]:
        rtt = _format_ms(rtts[one, other])
        message = f"a round trip to {other} takes {rtt}, others {_format_ms(usual)}"
        yield warning(one, message, hint)


def _rtts(tries: _Tries) -> dict[Pair, float]:
    """Return the shorter round trip of each pair's two directions."""
    order = {name: position for position, name in enumerate(tries.nodes)}
    rtts: dict[Pair, float] = {}
    for (one, other), result in tries.by_pair.items():
        if result.outcome is Outcome.REACHED and result.rtt_s:
            pair = (one, other) if order[one] < order[other] else (other, one)
            rtts[pair] = min(result.rtt_s, rtts.get(pair, result.rtt_s))
    return rtts


def _summary_text(tries: _Tries) -> str:
    count, rtts = f"{len(tries.by_pair)} pairs", sorted(_rtts(tries).values())
    if not rtts:
        return count
    limits = dict.fromkeys((_format_ms(rtts[0]), _format_ms(rtts[-1])))
    return f"{count}, round trips {' to '.join(limits)}"


def _format_ms(seconds: float) -> str:
    return f"{float(f'{max(0.01, 1000 * seconds):.2g}'):g} ms"


def _subnet(tries: _Tries, node: str) -> str:
    return tries.probe.endpoints[node].subnet or "the others"


def _hint(tries: _Tries, result: ProbeResult) -> str:
    """Return the remedy for one kind of failure."""
    target = result.target
    endpoint, subnet = tries.probe.endpoints[target.node], _subnet(tries, target.node)
    interface_hint = f"to use another network: cluster.nodes.{target.node}.interface"
    if result.outcome is Outcome.STALLED:
        return (
            f"to find the largest packet that passes: ping -M do -s 1472 {target.address}\n"
            "then set the same MTU on the whole path: "
            f"ip link set dev {endpoint.interface} mtu 1400"
        )
    if result.outcome in WRONG_LISTENER:
        refuses = ", or a firewall refuses" if result.outcome is Outcome.REFUSED else ""
        return (
            f"another machine has {target.address}{refuses}; on the node that fails: "
            f"arping {target.address}\n{interface_hint}"
        )
    if result.outcome is Outcome.NO_GREETING:
        return f"it is very busy, or something on the path filters the data; {CHECK_AGAIN}"
    if result.outcome in {Outcome.NO_ROUTE, Outcome.UNREACHABLE, Outcome.FAILED}:
        return f"on the node that fails: ip route get {target.address}\n{interface_hint}"
    return (
        "a firewall? gloo and NCCL need every port between the nodes; on every node:\n"
        f"sudo ufw allow from {subnet}\n"
        f"or: sudo firewall-cmd --zone=trusted --add-source={subnet}\n{interface_hint}"
    )


def _reason_text(results: Iterable[ProbeResult]) -> str:
    """Return the outcomes in words, the most frequent first."""
    counts = Counter(
        OUTCOME_TEXT[result.outcome] + (f" ({result.detail})" if result.detail else "")
        for result in results
    )
    return ", or ".join(text for text, _ in counts.most_common(3))
