"""Findings of every check, one fault at a time, with what to do, on one page."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from runner.checks.base import CheckContext, NetworkProbe, all_checks
from runner.core.errors import Level
from runner.core.planning.endpoints import Endpoint
from runner.core.spec import ContainerSpec, Node, Rendezvous
from runner.core.wire.container import ContainerFacts
from runner.core.wire.facts import (
    Driver,
    Facts,
    GpuHealth,
    Interface,
    Outcome,
)
from tests.golden.builders import LO, TORCH, facts, gpus, network_probe, spec
from tests.golden.conftest import Check

DRIVER = Driver("550.54.15", "12.4")
WELL = GpuHealth(volatile=0, repair_pending=False)
LATE = Outcome.TIMED_OUT


def case(gpu_counts: tuple[int | None, ...] = (None, None, None), **changes: Facts) -> CheckContext:
    """Three hosts that are well, but for what is changed in some."""
    names = ("a", "b", "c")
    nodes = [
        Node(name, f"10.0.0.{at}", gpus=count)
        for at, (name, count) in enumerate(zip(names, gpu_counts, strict=True), 1)
    ]
    well = {
        name: facts(name, f"eth0 10.0.0.{at}/24", gpu_count=2, limits={"nofile": 65536})
        for at, name in enumerate(names, 1)
    }
    return CheckContext(spec(*nodes), {**well, **changes}, {}, dict.fromkeys(names, 0.01))


def host(name: str, **changes: Any) -> Facts:
    """One of them, with something changed."""
    return replace(case().facts[name], **changes)


def only_b(**changes: Any) -> CheckContext:
    return case(b=host("b", **changes))


def with_spec(found: CheckContext, **changes: Any) -> CheckContext:
    return replace(found, spec=replace(found.spec, **changes))


def driven(version: str, cuda: str, needed: str) -> CheckContext:
    """Host b with an older driver, and a torch that needs a newer one."""
    python = replace(TORCH, torch_cuda=needed)
    older = host("b", driver=Driver(version, cuda), python=python)
    return case(a=host("a", driver=DRIVER), b=older, c=host("c", driver=DRIVER))


def ill(*healths: GpuHealth | None, error: str = "") -> CheckContext:
    """Host b with GPUs of this health; the last does not answer, for that reason."""
    there = [
        replace(gpu, health=health) for gpu, health in zip(gpus(len(healths)), healths, strict=True)
    ]
    there[-1] = replace(there[-1], error=error)
    return only_b(gpus=tuple(there))


def in_container() -> CheckContext:
    """Two ranks of each host in an image that is there, with 64 MiB of shared memory on host b."""
    inside = ContainerFacts("start", program="/usr/bin/docker", shm_bytes=64 << 20)
    image = ContainerSpec(engine="docker", program="docker", image="train:1")
    return with_spec(only_b(container=inside), container=image)


def probed(
    nodes: str,
    pairs: dict[str, Outcome] | None = None,
    trips: dict[str, float] | None = None,
) -> CheckContext:
    """Hosts that tried each other; pairs like "ab" did not reach each other so."""
    at = {name: f"10.0.0.{number}" for number, name in enumerate(nodes, 1)}
    tried = {(pair[0], pair[1]): outcome for pair, outcome in (pairs or {}).items()}
    took = {(pair[0], pair[1]): trip for pair, trip in (trips or {}).items()}
    well = {name: facts(name, f"eth0 {address}/24") for name, address in at.items()}
    asked = spec(*(Node(name, address) for name, address in at.items()))
    return CheckContext(asked, well, network_probe=network_probe(at, tried, took))


def same_address() -> CheckContext:
    """Two nodes that are reached at one address, and so not from elsewhere."""
    found = probed("abc", {"ac": Outcome.REFUSED, "bc": Outcome.REFUSED})
    assert found.network_probe
    found.network_probe.endpoints["c"] = found.network_probe.endpoints["a"]
    return found


def without_interface(*, is_key_set: bool) -> CheckContext:
    """Host c lacks the interface of its key, or nobody knows why its pairs were not tried."""
    lacking = replace(case(), network_probe=NetworkProbe({"c": Endpoint("ib0")}))
    nodes = list(lacking.spec.nodes)
    if is_key_set:
        nodes[2] = replace(nodes[2], interface="ib0")
    return with_spec(lacking, nodes=tuple(nodes))


BRIDGE = Interface("docker0", ("10.0.0.1/16",))
INTO_C = {f"{name}c": LATE for name in "abd"}
OUT_OF_C = {f"c{name}": LATE for name in "abd"}
NONE = {one + other: LATE for one in "abcd" for other in "abcd" if one != other}
CASES: list[tuple[str, str, CheckContext]] = [
    ("limits", "few open files", only_b(limits={"nofile": 1024})),
    ("logout", "logind", only_b(logind_kill_setting="KillUserProcesses=yes")),
    ("gpus", "more than there are", case((2, 4, None))),
    (
        "rendezvous",
        "who reaches the store",
        with_spec(only_b(), rendezvous=Rendezvous("c10d")),
    ),
    ("clock", "one late, one early", replace(case(), clock_offsets={"a": -90, "b": 0.5, "c": 7.2})),
    ("driver", "too old", driven("470.256.02", "11.4", "12.8")),
    ("driver", "too old for the next", driven("570.86.10", "12.8", "13.0")),
    ("health", "memory errors", ill(WELL, replace(WELL, volatile=2))),
    ("health", "on both GPUs", ill(*[replace(WELL, volatile=2)] * 2)),
    ("health", "a repair", ill(WELL, replace(WELL, repair_pending=True))),
    ("health", "off the bus", ill(WELL, None, error="GPU is lost")),
    ("health", "at a launch", ill(None, None, error="GPU is lost")),
    ("health", "a reset", ill(WELL, None, error="GPU requires reset")),
    ("container", "little shared memory", in_container()),
    ("network", "a full disk elsewhere", only_b(disk_free=0)),
    ("network", "one address twice", only_b(interfaces=host("a").interfaces)),
    ("network", "an own bridge", case(c=host("c", interfaces=(LO, BRIDGE)))),
    ("network", "two nodes of a machine", case(c=replace(host("a"), node="c"))),
    ("network", "a missing interface", without_interface(is_key_set=True)),
    ("pairs", "not tried for that reason", without_interface(is_key_set=True)),
    ("pairs", "not tried", without_interface(is_key_set=False)),
    ("pairs", "all well", probed("abcd", trips={"ab": 0.0004, "ba": 0.0004})),
    ("pairs", "without a try", replace(probed("abc"), network_probe=None)),
    *[
        ("pairs", f"one direction {outcome.value}", probed("abc", {"ac": outcome}))
        for outcome in Outcome
    ],
    ("pairs", "the other direction", probed("abc", {"ca": LATE})),
    ("pairs", "both directions", probed("abcd", {"ac": LATE, "ca": Outcome.REFUSED})),
    ("pairs", "of two nodes", probed("ab", {"ab": LATE, "ba": LATE})),
    ("pairs", "into a node", probed("abcd", INTO_C)),
    ("pairs", "out of a node", probed("abcd", OUT_OF_C)),
    ("pairs", "a node and a pair", probed("abcd", INTO_C | OUT_OF_C | {"ab": Outcome.RESET})),
    ("pairs", "everywhere", probed("abcd", NONE)),
    ("pairs", "two nodes at one address", same_address()),
]


def test_each_fault_is_told_with_its_host_and_what_to_do(check_screen: Check) -> None:
    """Faults that differ only in the GPU, the pair or the direction are one."""
    page = []
    for check, title, found in CASES:
        page.append(f"{check}: {title}")
        for each in all_checks()[check](found):
            assert each.hint or each.level is Level.OK, each
            hint = each.hint.replace("\n", "\n      ")
            page.append(f"  {each.level.value}: {each.node or '-'}: {each.message}")
            page += [f"      {hint}"] if hint else []
    check_screen("findings.txt", "\n".join(page) + "\n")
