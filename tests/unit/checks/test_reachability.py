"""Findings from the hosts' tries to reach each other, and from their name look-ups."""

from __future__ import annotations

from dataclasses import replace

import pytest

from runner.checks.base import CheckContext
from runner.checks.network import names, network
from runner.checks.reachability import MAX_LISTED_PAIRS, OUTCOME_TEXT, pairs
from runner.core.model.facts import Endpoint, Facts, Interface
from runner.core.model.network_probe import (
    HostProbe,
    NameLookups,
    NameResults,
    NetworkProbe,
    Outcome,
    ProbeResult,
    Target,
)
from runner.core.model.results import Finding, Level
from runner.core.model.spec import Node
from tests.golden.builders import LO, facts, spec

OK, LATE = Outcome.REACHED, Outcome.TIMED_OUT
ERROR, WARNING, FINE = Level.ERROR, Level.WARNING, Level.OK
STORE = Target("a", "10.0.0.1", 29500)


def target(name: str) -> Target:
    """Where a node listens."""
    at = ord(name[-1]) - ord("a") + 1
    return Target(name, f"10.0.0.{at}", 40000 + at)


def probed(
    nodes: str,
    ill: dict[str, Outcome] | None = None,
    *,
    store: dict[str, Outcome] | None = None,
    trips: dict[str, float] | None = None,
) -> NetworkProbe:
    """What nodes of one letter each found; `ill` pairs like "ab" did not reach each other so."""

    def contacts(name: str) -> tuple[ProbeResult, ...]:
        tried = [
            ProbeResult(
                target(n), (ill or {}).get(name + n, OK), (trips or {}).get(name + n, 0.0002)
            )
            for n in nodes
            if n != name
        ]
        at_store = [ProbeResult(STORE, (store or {}).get(name, OK), 0.0002)] if name != "a" else []
        return (*tried, *at_store)

    return NetworkProbe(
        {n: Endpoint("eth0", target(n).address, "10.0.0.0/24") for n in nodes},
        (*map(target, nodes), STORE),
        STORE,
        {n: HostProbe(contacts(n)) for n in nodes},
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
    """All that `pairs` says."""
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
        ("a", f"a cannot reach c at 10.0.0.3:40003: {OUTCOME_TEXT[outcome]}; both reach the others")
    ]
    assert bad(probed("abc", {"ca": outcome}))[0][0] == "c"


def test_both_directions_are_one_finding() -> None:
    """However each of them fails; of two nodes no others are spoken of."""
    both = {"ac": LATE, "ca": Outcome.REFUSED}
    words = "a and c cannot reach each other: timed out, or refused, though it listens"
    where = " at 10.0.0.3 and 10.0.0.1; both reach the others"
    assert bad(probed("abcd", both)) == [("a", words + where)]
    assert bad(probed("ab", {"ab": LATE, "ba": LATE})) == [
        ("a", "a and b cannot reach each other: timed out at 10.0.0.2 and 10.0.0.1")
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
    assert every[1][1].startswith("a cannot reach b at 10.0.0.2:40002: reset on the way")


def test_nothing_that_passes_is_one_finding() -> None:
    """However many nodes there are."""
    every = {one + other: LATE for one in "abcd" for other in "abcd" if one != other}
    ((node, what),) = bad(probed("abcd", every))
    assert (node, what.rpartition(": ")[2]) == ("", "timed out")


def test_many_pairs_are_counted() -> None:
    """Two halves of a cluster that do not see each other."""
    halves = {one + other: LATE for one in "abcd" for other in "efgh"}
    found = bad(probed("abcdefgh", {**halves, **{k[::-1]: v for k, v in halves.items()}}))
    assert len(found) == MAX_LISTED_PAIRS + 1
    assert found[-1][1].startswith("8 more pairs cannot, such as c and e")


def test_the_masters_port_is_judged_where_its_machine_is_reached() -> None:
    """Who answers there tells more of a pair than a port at which nobody listens."""
    key = "cluster.master_port: "
    rest = "its port 29500 (timed out), while other ports are open"
    assert bad(probed("abc", store={"b": LATE, "c": LATE})) == [
        ("a", f"{key}no node reaches {rest}")
    ]
    assert bad(probed("abc", store={"b": LATE})) == [("a", f"{key}b cannot reach {rest}")]
    found = probed("abc", {"ba": Outcome.REFUSED}, store={"b": Outcome.WRONG_PEER})
    ((node, what),) = bad(found)
    assert (node, "another machine or program answers" in what) == ("b", True)


def test_a_slow_host_is_told_from_a_slow_pair() -> None:
    """Ten times what is usual, and more than 2 ms."""
    slow = {one + other: 0.03 for one in "abcd" for other in "abcd" if "c" in (one, other)}
    assert bad(probed("abcd", trips=slow)) == [
        ("c", "round trips to it take up to 30 ms, others 0.2 ms")
    ]
    assert bad(probed("abcd", trips={"ab": 0.03, "ba": 0.04})) == [
        ("a", "a round trip to b takes 30 ms, others 0.2 ms")
    ]
    assert bad(probed("abcd", trips=dict.fromkeys(slow, 0.0019))) == []


def test_who_did_not_answer_is_said() -> None:
    """And whose address is not known, and what was not tried in time."""
    found = probed("abc")
    del found.by_node["b"]
    found.endpoints["c"] = Endpoint("eth0")
    found.by_node["c"] = HostProbe(found.by_node["c"].results[:1])
    lost = replace(found, missing_reasons={"b": "the connection to it is gone"})
    assert [(each.level, each.node) for each in told(lost)[:3]] == [
        (WARNING, "b"),
        (WARNING, "c"),
        (WARNING, ""),
    ]
    assert told(lost)[2].message == "tests that did not end in time: 1, such as c → b"


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


def test_unlike_mtus_are_a_warning() -> None:
    """Of the interfaces that are used; unknown ones are like all."""
    host = facts("b", "eth0 10.0.0.2/24")
    jumbo = tuple(replace(each, mtu=9000) for each in host.interfaces)
    plain = facts("a", "eth0 10.0.0.1/24")
    usual = tuple(replace(each, mtu=1500) for each in plain.interfaces)
    looked = case(
        probed("abc"), a=replace(plain, interfaces=usual), b=replace(host, interfaces=jumbo)
    )
    assert [(e.node, e.message) for e in network(looked) if e.level is WARNING] == [
        ("b", "eth0 has MTU 9000, most have 1500: large packets may be lost")
    ]


AT = {"a": "10.0.0.1", "b": "10.0.0.2"}
WELL = NameResults(
    ("a", "b"), {"a": 0.01, "b": 0.01}, own_addresses=("10.0.0.2",), own_name_answered=True
)


def named(told: NameResults, *, master: str = "", interface: str = "eth0") -> list[Finding]:
    """What `names` says where b found `told`, and a what it should."""
    right = replace(
        WELL, own_addresses=("10.0.0.1",), master_addresses=("127.0.1.1",) if master else ()
    )
    found = NetworkProbe(
        {n: Endpoint(interface, at, "10.0.0.0/24") for n, at in AT.items()},
        by_node={"a": HostProbe(name_results=right), "b": HostProbe(name_results=told)},
        lookups=NameLookups(AT, master),
    )
    return [each for each in names(case(found)) if each.node == "b"]


def test_look_ups_that_answer_are_fine() -> None:
    """At once, whatever they say."""
    assert named(WELL) == [Finding(FINE, "b", "answered at once")]


@pytest.mark.parametrize(
    ("seconds", "what"),
    [
        ({"a": 0.01, "b": 3.4}, "it takes up to 3 s when it looks up"),
        ({"a": 0.01}, "no answer within 5 s when it looks up"),
        ({"a": 0.01, "b": 5.2}, "no answer within 5 s when it looks up"),
    ],
)
def test_slow_look_ups_are_a_warning(seconds: dict[str, float], what: str) -> None:
    """With the lines that cure it."""
    (found,) = named(replace(WELL, seconds=seconds))
    assert found.level is WARNING
    assert found.message.startswith(what)
    assert found.hint.splitlines()[1:] == ["10.0.0.1 a", "10.0.0.2 b"]


def test_look_ups_that_were_not_made_are_said() -> None:
    """On a host without processes to spare, or one that went away."""
    assert [each.level for each in named(NameResults(), master="gpu1")] == [WARNING]
    gone = NetworkProbe(
        {}, missing_reasons={"b": "the connection to it is gone"}, lookups=NameLookups(AT)
    )
    ((level, node),) = [(each.level, each.node) for each in names(case(gone))]
    assert (level, node) == (WARNING, "b")


def test_an_own_name_that_loops_matters_where_no_interface_is_known() -> None:
    """Else the plan sets GLOO_SOCKET_IFNAME."""
    loops = replace(WELL, own_addresses=("127.0.1.1",))
    assert [each.level for each in named(loops)] == [FINE]
    (found,) = named(loops, interface="")
    assert (found.level, found.hint) == (WARNING, "set cluster.nodes.b.interface")


@pytest.mark.parametrize(
    ("addresses", "level", "what"),
    [
        (("10.0.0.1",), FINE, "answered at once"),
        (("127.0.1.1",), ERROR, "leads to 127.0.1.1 there, that is, to itself and not to a"),
        (("10.9.9.9",), WARNING, "leads to 10.9.9.9, not an address of a: right only behind NAT"),
        ((), ERROR, "cannot be looked up there: no answer within 5 s"),
    ],
)
def test_the_masters_name_must_lead_to_it(
    addresses: tuple[str, ...], level: Level, what: str
) -> None:
    """On every other node; a loopback address is harmless on itself."""
    found = named(replace(WELL, master_addresses=addresses), master="gpu1")[0]
    assert (found.level, found.message.endswith(what)) == (level, True), found
