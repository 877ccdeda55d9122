"""Checks of the network of a run: rendezvous, addresses, ports, and each node from each other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace

from runner.checks.base import CheckContext, NetworkProbe, check, error, ok, warning
from runner.core.errors import Finding, NotReady
from runner.core.planning.build_plan import build_plan
from runner.core.planning.endpoints import (
    choose_endpoints,
    duplicate_addresses,
    interface_problems,
    peer_endpoints,
)
from runner.core.planning.readiness import problems_of, without_removed_env
from runner.core.wire.facts import Outcome, ProbeResult

ONE_PAIR = 2  # the number of nodes of which a pair is the whole cluster
MAX_LISTED_PAIRS = 8  # the number of pairs to name one by one
CHECK_AGAIN = "check again; if nothing changes, log in there"

OUTCOME_TEXT = {
    Outcome.REFUSED: "refused, though it listens",
    Outcome.TIMED_OUT: "timed out",
    Outcome.RESET: "reset on the way",
    Outcome.WRONG_PEER: "another machine or program answers",
    Outcome.NO_GREETING: "connected, but no greeting came",
    Outcome.STALLED: "small packets pass, large packets vanish on the way",
    Outcome.FAILED: "failed",
}

WRONG_LISTENER = {Outcome.WRONG_PEER, Outcome.REFUSED}  # another machine has the address

Pair = tuple[str, str]
Tests = dict[Pair, ProbeResult]


@check(60)
def rendezvous(context: CheckContext) -> Iterator[Finding]:
    """Report what torch on a host lacks for it; warn of who may reach the store."""
    for node, _ in context.ready:
        yield from context.unmet("rendezvous", node)
    risk = context.spec.rendezvous.store_risk
    if risk and not context.spec.task.without_torchrun:
        message = f"whoever reaches the store that the nodes meet at can {risk}"
        hint = "choose rendezvous=static, or a network that only people you trust can reach"
        yield warning("", message, hint)


@check(100)
def network(context: CheckContext) -> Iterator[Finding]:
    """Report an error where the hosts that answered have no usable address or port."""
    if not context.ready:
        return
    spec = replace(context.spec, nodes=tuple(node for node, _ in context.ready))
    facts = {node.name: without_removed_env(spec, node, facts) for node, facts in context.ready}
    unmet = {node.name: context.unmet("network", node) for node in spec.nodes}
    for findings in unmet.values():
        yield from findings
    try:
        chosen = choose_endpoints(spec, facts)
        if problems := duplicate_addresses(spec, facts):
            raise NotReady(problems)
        if not any(problems_of(spec, node, facts[node.name]) for node in spec.nodes):
            build_plan(spec, facts)  # it refuses a backend, too
    except NotReady as refusal:  # what is wrong with one host alone is for other checks
        yield from map(Finding.from_problem, refusal.problems)
        return
    for name, endpoint in peer_endpoints(context.spec, spec.nodes, facts).items():
        subnet = f" in {endpoint.subnet}" if endpoint.subnet else ""
        via = f" via {endpoint.interface}{subnet}" if endpoint.interface else ""
        message = f"meets at {chosen.addr} ({chosen.reason}){via}"
        if not unmet[name]:
            yield ok(name, message if len(spec.nodes) > 1 else "single node")


@check(110)
def pairs(context: CheckContext) -> Iterator[Finding]:
    probe = context.network_probe
    if probe is None:
        return
    yield from _without_tests(context, probe)
    tests = {(name, r.target.node): r for name, results in probe.by_node.items() for r in results}
    if not tests:
        return
    targets = {target.node for target in probe.targets}
    wanted = {(name, node) for name in probe.by_node for node in targets if name != node}
    if missing := sorted(wanted - tests.keys()):
        example = " → ".join(missing[0])
        message = f"tests that did not end in time: {len(missing)}, such as {example}"
        yield warning("", message, CHECK_AGAIN)
    failed = {pair: r for pair, r in tests.items() if r.outcome is not Outcome.REACHED}
    if not failed:
        trips = sorted(result.rtt_s for result in tests.values() if result.rtt_s)
        ends = (*trips[:1], *trips[-1:])
        limits = dict.fromkeys(f"{round(1000 * trip, 2):g} ms" for trip in ends)
        shown = f", round trips {' to '.join(limits)}" if trips else ""
        yield ok("", f"{len(tests)} pairs{shown}")
    elif len(failed) == len(tests) and len(_tested(probe, tests)) > ONE_PAIR:
        example_test = next(iter(failed.values()))
        message = f"no node reaches another at {example_test.target.address} and the like: "
        yield error("", message + _reason_text(failed.values()), _hint(probe, example_test))
    else:
        # `network` reports an address that two have.
        first = {endpoint.address: name for name, endpoint in reversed(probe.endpoints.items())}
        owners = {*first.values()}
        left = {pair: result for pair, result in failed.items() if owners >= {*pair}}
        yield from _isolated_nodes(probe, tests, left)
        yield from _broken_pairs(probe, tests, left)


def _without_tests(context: CheckContext, probe: NetworkProbe) -> Iterator[Finding]:
    for name, reason in probe.missing_reasons.items():
        message = f"answered before, but its network tests failed: {reason}"
        yield warning(name, message, CHECK_AGAIN)
    nodes = {node.name: node for node in context.spec.nodes}
    for name, endpoint in probe.endpoints.items():
        is_known = endpoint.address or any(interface_problems(nodes[name], context.facts[name]))
        if not is_known:  # nor has `network` an error of it
            message = "not tested: the address by which other nodes reach it is unknown"
            yield warning(name, message, f"set cluster.nodes.{name}.interface")


def _isolated_nodes(probe: NetworkProbe, tests: Tests, left: Tests) -> Iterator[Finding]:
    """Report nodes that no other reaches, or that reach no other; take their pairs out of `left`.

    A pair is (from, to).
    """
    failed = dict(left)
    for name in _tested(probe, tests):
        ways: list[list[Pair]] = []  # in, out
        for end in (1, 0):
            pairs_there = [pair for pair in tests if pair[end] == name]
            ways.append(pairs_there if failed.keys() >= {*pairs_there} else [])
        unreached, cut = ways
        if len(_tested(probe, tests)) <= ONE_PAIR or not (unreached or cut):
            continue
        result = failed[min(unreached or cut)]
        message = "it reaches no other node"
        if unreached:
            target = result.target
            interface = probe.endpoints[name].interface
            message = f"no node reaches it at {target.address}, port {target.port} ({interface})"
            message += ", and it reaches none" if cut else ""
        message += f": {_reason_text(failed[pair] for pair in sorted({*unreached, *cut}))}"
        yield error(name, message, _hint(probe, result))
        for pair in (*unreached, *cut):
            left.pop(pair, None)


def _broken_pairs(probe: NetworkProbe, tests: Tests, left: Tests) -> Iterator[Finding]:
    nodes = _tested(probe, tests)
    remaining = sorted({tuple(sorted(pair, key=nodes.index)) for pair in left})
    for one, other in remaining[:MAX_LISTED_PAIRS]:
        forward = left.get((one, other))
        backward = left.get((other, one))
        failed = [each for each in (forward, backward) if each]
        result = min(failed, key=lambda each: each.outcome not in WRONG_LISTENER)
        reason = _reason_text(failed)
        target = result.target
        if forward and backward:
            message = f"it and {other} cannot reach each other: {reason}"
            message += f" at {forward.target.address} and {backward.target.address}"
        else:
            message = f"cannot reach {target.node} at {target.address}:{target.port}: {reason}"
        others_fail = any(
            len({one, other} & {*pair}) == 1 and test.outcome is not Outcome.REACHED
            for pair, test in tests.items()
        )
        if not others_fail and len(nodes) > ONE_PAIR:
            message += "; both reach the others"
        yield error(one if forward else other, message, _hint(probe, result))
    if unlisted := remaining[MAX_LISTED_PAIRS:]:
        message = f"{len(unlisted)} more pairs cannot, such as {' and '.join(unlisted[0])}"
        yield error("", message, "do as for the pairs named above")


def _tested(probe: NetworkProbe, tests: Tests) -> list[str]:
    """Return the nodes at either end of a test, in rank order."""
    return [name for name in probe.endpoints if any(name in pair for pair in tests)]


def _hint(probe: NetworkProbe, result: ProbeResult) -> str:
    target = result.target
    endpoint = probe.endpoints[target.node]
    subnet = endpoint.subnet or "the others"
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
    if result.outcome is Outcome.FAILED:
        return f"on the node that fails: ip route get {target.address}\n{interface_hint}"
    return (
        "a firewall? gloo and NCCL need every port between the nodes; on every node:\n"
        f"sudo ufw allow from {subnet}\n"
        f"or: sudo firewall-cmd --zone=trusted --add-source={subnet}\n"
        f"{interface_hint}"
    )


def _reason_text(results: Iterable[ProbeResult]) -> str:
    """Return the outcomes in words, the most frequent first."""
    counts = Counter(
        OUTCOME_TEXT[result.outcome] + (f" ({result.detail})" if result.detail else "")
        for result in results
    )
    return ", or ".join(text for text, _ in counts.most_common(3))
