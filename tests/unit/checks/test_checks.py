"""Checks: their findings on healthy hosts and on others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from runner.checks.base import CheckContext, all_checks
from runner.core.errors import Problem
from runner.core.model.facts import Endpoint, Facts, Interpreter, SetupResult
from runner.core.model.network_probe import NetworkProbe
from runner.core.model.results import Level
from runner.core.spec import Node, Rendezvous, Torchrun
from tests.golden.builders import TORCH, facts, spec

ERROR, WARNING, FINE = Level.ERROR, Level.WARNING, Level.OK


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


def bad(check: str, looked_at: CheckContext) -> list[tuple[Level, str, str]]:
    """What a check finds that is not fine."""
    found = list(all_checks()[check](looked_at))
    assert all(one.hint for one in found if one.level is not FINE), found
    return [(one.level, one.node, one.message) for one in found if one.level is not FINE]


def test_nothing_is_wrong_with_what_is_well() -> None:
    """Three equal hosts."""
    for check in all_checks():
        assert bad(check, case()) == []


def test_where_nobody_answers_no_check_fails_itself() -> None:
    """It has nothing to say, but for the one that says so."""
    unreachable = {name: Problem(name, "no", "x") for name in "abc"}
    nobody = replace(case(), facts={}, clock_offsets={}, unreachable=unreachable)
    for check in all_checks().keys() - {"reach"}:
        assert bad(check, nobody) == []
    assert [level for level, _, _ in bad("reach", nobody)] == [ERROR] * 3


def test_setup_that_fails_is_an_error_and_the_rest_of_that_host_is_not_judged() -> None:
    """Nothing else is known of it."""
    ill = case(
        b=host("b", setup=SetupResult(1, "module: not found"), python=Interpreter(), gpus=())
    )
    (found,) = all_checks()["setup"](ill)
    assert (found.level, found.node) == (ERROR, "b")
    assert found.message == "cluster.setup ended with 1; this host is not checked any further"
    assert found.hint.startswith("| module: not found\n")
    for check in all_checks().keys() - {"setup"}:
        assert bad(check, ill) == []


@pytest.mark.parametrize(
    ("check", "changes", "found"),
    [
        ("limits", {"limits": {"nofile": 1024}}, (WARNING, "ulimit -n is 1024")),
        (
            "logout",
            {"logind_kill_setting": "KillUserProcesses=yes"},
            (WARNING, "logind kills your"),
        ),
        ("tmp", {"tmp": "/tmp", "tmp_free": 3 << 20}, (WARNING, "/tmp has 3 MiB free")),
    ],
)
def test_what_is_wrong_is_said(
    check: str, changes: Mapping[str, Any], found: tuple[Level, str]
) -> None:
    """Of that host alone, with how bad it is."""
    ((level, node, what),) = bad(check, case(b=host("b", **changes)))
    assert (level, node) == (found[0], "b")
    assert found[1] in what


def test_too_few_gpus_are_an_error() -> None:
    """The key and what is legal are in it."""
    ((level, node, what),) = bad("gpus", case((2, 4, None)))
    assert (level, node) == (ERROR, "b")
    assert what == "cluster.nodes.b.gpus: asked for 4, the host has 2 (nvml)"


@pytest.mark.parametrize(
    ("options", "torch", "what"),
    [
        (
            Torchrun(signals_to_handle=("SIGTERM",)),
            "2.9.1+cu128",
            "torchrun.signals_to_handle needs 2.10 or newer",
        ),
        (Torchrun(), "1.13.1", "rendezvous=c10d (--local_addr) needs 2.0 or newer"),
    ],
)
def test_an_option_that_a_hosts_torch_has_not(options: Torchrun, torch: str, what: str) -> None:
    """Its version, the key, and the first torch that has it."""
    found = case(b=host("b", python=replace(TORCH, torch=torch)))
    asked = replace(found.spec, rendezvous=Rendezvous("c10d"), torchrun=options)
    assert bad("rendezvous", replace(found, spec=asked)) == [
        (ERROR, "b", f"torch {torch} is there, and {what}")
    ]


def test_a_clock_that_is_off_is_a_warning() -> None:
    """In either direction."""
    off = replace(case(), clock_offsets={"a": -90.0, "b": 0.5, "c": 7.2})
    assert [(node, what.partition(":")[0]) for _, node, what in bad("clock", off)] == [
        ("a", "its clock is 90 s behind this machine's"),
        ("c", "its clock is 7 s ahead of this machine's"),
    ]


def test_the_network_is_checked_also_where_a_host_is_not_ready() -> None:
    """What else hinders a launch, such as a full disk, is for other checks to say."""
    rows = list(all_checks()["network"](case(b=host("b", disk_free=0))))
    assert [(row.level, row.node) for row in rows] == [(FINE, name) for name in "abc"]
    assert rows[1].message == "meets at 10.0.0.1 (the master's host) via eth0 in 10.0.0.0/24"
    double = host("b", disk_free=0, interfaces=host("a").interfaces)
    ((_, node, what),) = bad("network", case(b=double))
    assert (node, what) == ("b", "10.0.0.1 (eth0) is the address of a, too")


def test_an_interface_that_is_not_there_is_an_error_of_the_network_alone() -> None:
    """The pairs were not tried for that reason, and a warning would name the key as not set."""
    well = case()
    nodes = (*well.spec.nodes[:2], replace(well.spec.nodes[2], interface="ib0"))
    lacking = replace(
        well,
        spec=replace(well.spec, nodes=nodes),
        network_probe=NetworkProbe({"c": Endpoint("ib0")}),
    )
    assert bad("network", lacking) == [
        (ERROR, "c", "cluster.nodes.c.interface: there is no interface ib0")
    ]
    assert [row.node for row in all_checks()["network"](lacking)] == ["c", "a", "b"]
    assert bad("pairs", lacking) == []
    ((level, node, _),) = bad("pairs", replace(lacking, spec=well.spec))
    assert (level, node) == (WARNING, "c")
