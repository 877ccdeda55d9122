"""Findings from the hosts' tries to reach each other, and from their name look-ups."""

from __future__ import annotations

from dataclasses import replace

import pytest

from runner.checks.base import CheckContext
from runner.checks.network import network
from runner.checks.reachability import OUTCOME_TEXT, pairs
from runner.core.model.facts import Endpoint, Facts, Interface
from runner.core.model.network_probe import (
    NetworkProbe,
    Outcome,
    ProbeResult,
    Target,
)
from runner.core.model.results import Finding, Level
from runner.core.spec import Node
from tests.golden.builders import LO, facts, spec

OK, LATE = Outcome.REACHED, Outcome.TIMED_OUT
ERROR, WARNING, FINE = Level.ERROR, Level.WARNING, Level.OK


def target(name: str) -> Target:
    at = ord(name[-1]) - ord("a") + 1
    return Target(name, f"10.0.0.{at}", 40000 + at)


def probed(
    nodes: str,
    ill: dict[str, Outcome] | None = None,
    *,
    trips: dict[str, float] | None = None,
) -> NetworkProbe:
    """What nodes of one letter each found; `ill` pairs like "ab" did not reach each other so."""

    def contacts(name: str) -> tuple[ProbeResult, ...]:
        return tuple(
            ProbeResult(
                target(n), (ill or {}).get(name + n, OK), (trips or {}).get(name + n, 0.0002)
            )
            for n in nodes
            if n != name
        )

    return NetworkProbe(
        {n: Endpoint("eth0", target(n).address, "10.0.0.0/24") for n in nodes},
        tuple(map(target, nodes)),
        {n: contacts(n) for n in nodes},
    )


def case(found: NetworkProbe | None, **changed: Facts) -> CheckContext:
    """Hosts that are well, and what they found of each other."""
    known = found.endpoints if found else {"a": Endpoint(), "b": Endpoint(), "c": Endpoint()}
    told = {
        n: facts(n, f"eth0 10.0.0.{at}/24") for at, n in enumerate(known, 1) if n not in changed
    }
    nodes = (Node(n, f"10.0.0.{at}") for at, n in enumerate(known, 1))
    return CheckContext(spec(*nodes), {**told, **changed}, network_probe=found)


def bad(found: NetworkProbe) -> list[tuple[str, str]]:
    """The errors and warnings of `pairs`: node and what."""
    return [(each.node, each.message) for each in told(found) if each.level is not FINE]


def told(found: NetworkProbe) -> list[Finding]:
    every = list(pairs(case(found)))
    assert all(each.hint for each in every if each.level is not FINE)
    return every


def test_all_is_well() -> None:
    """One line counts the pairs and tells the round trips; without a try there is nothing."""
    found = probed("abcd", trips={"ab": 0.0004, "ba": 0.0004})
    assert told(found) == [Finding(FINE, "", "12 pairs, round trips 0.2 ms to 0.4 ms")]
    assert list(pairs(case(None))) == []
    assert list(pairs(case(NetworkProbe(found.endpoints)))) == []


@pytest.mark.parametrize("outcome", [outcome for outcome in Outcome if outcome is not OK])
def test_one_direction_is_named(outcome: Outcome) -> None:
    """With where it was tried, how it failed, and that the two reach all others."""
    assert bad(probed("abc", {"ac": outcome})) == [
        ("a", f"cannot reach c at 10.0.0.3:40003: {OUTCOME_TEXT[outcome]}; both reach the others")
    ]
    assert bad(probed("abc", {"ca": outcome}))[0][0] == "c"


def test_both_directions_are_one_finding() -> None:
    """However each of them fails; of two nodes no others are spoken of."""
    both = {"ac": LATE, "ca": Outcome.REFUSED}
    words = "it and c cannot reach each other: timed out, or refused, though it listens"
    where = " at 10.0.0.3 and 10.0.0.1; both reach the others"
    assert bad(probed("abcd", both)) == [("a", words + where)]
    assert bad(probed("ab", {"ab": LATE, "ba": LATE})) == [
        ("a", "it and b cannot reach each other: timed out at 10.0.0.2 and 10.0.0.1")
    ]


def test_a_node_that_nobody_reaches_is_one_finding() -> None:
    """Other pairs stand by themselves."""
    into = {f"{n}c": LATE for n in "abd"}
    at = "no node reaches it at 10.0.0.3, port 40003 (eth0)"
    assert bad(probed("abcd", into)) == [("c", f"{at}: timed out")]
    out = {f"c{n}": LATE for n in "abd"}
    assert bad(probed("abcd", out)) == [("c", "it reaches no other node: timed out")]
    every = bad(probed("abcd", {**into, **out, "ab": Outcome.RESET}))
    assert every[0] == ("c", f"{at}, and it reaches none: timed out")
    assert every[1][1].startswith("cannot reach b at 10.0.0.2:40002: reset on the way")


def test_nothing_that_passes_is_one_finding() -> None:
    """However many nodes there are."""
    every = {one + other: LATE for one in "abcd" for other in "abcd" if one != other}
    ((node, what),) = bad(probed("abcd", every))
    assert (node, what.rpartition(": ")[2]) == ("", "timed out")


def test_an_address_that_two_machines_have() -> None:
    """`network` names them, and `pairs` leaves them alone; two nodes of one machine are none."""
    bridge = Interface("docker0", ("10.0.0.1/16",))
    double = facts("c", "eth0 10.0.0.3/24", interfaces=(LO, bridge))
    found = list(network(case(probed("abc"), c=double)))
    assert [(each.node, each.message) for each in found if each.level is not FINE] == [
        ("c", "10.0.0.1 (docker0) is the address of a, too")
    ]
    seen = probed("abc", {"ac": Outcome.REFUSED, "bc": Outcome.REFUSED})
    seen.endpoints["c"] = seen.endpoints["a"]
    assert bad(seen) == []
    same = replace(facts("a", "eth0 10.0.0.1/24"), node="c")
    assert all(each.level is FINE for each in network(case(probed("abc"), c=same)))
