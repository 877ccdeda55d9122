"""Checks of hosts that are well or not judged; a launch refuses exactly what they call errors."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from runner.checks.base import CheckContext, all_checks, evaluate_checks
from runner.core.errors import NotReady, Problem
from runner.core.planning.build_plan import build_plan
from runner.core.planning.readiness import REQUIREMENTS
from runner.core.results import Level
from runner.core.spec import Node
from runner.core.wire.facts import Interpreter, SetupResult
from tests.golden.builders import LO, facts, interface, spec
from tests.golden.test_findings import case, host

SPEC = spec(Node("a", "10.0.0.1", gpus=1, interface="eth0"), Node("b", "10.0.0.2"))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"setup": SetupResult(1, "module: not found")},
        {"python": Interpreter("/usr/bin/python3", "3.11.2")},
        {"project_exists": False},
        {"interfaces": (LO, interface("eth1 10.0.0.1/24"))},
        {"logind_kill_setting": "KillUserProcesses=yes"},
        {"disk_free": 0, "gpus": (), "reserved_port": 0, "port_error": "taken"},
    ],
)
@pytest.mark.parametrize("detach", [False, True])
def test_launch_refuses_what_checks_call_an_error(changes: dict[str, Any], *, detach: bool) -> None:
    """For every fact of a host that a launch depends on."""
    asked = replace(SPEC, detach=detach)
    well = {
        name: facts(name, f"eth0 10.0.0.{number}/24", gpu_count=1)
        for number, name in enumerate("ab", 1)
    }
    told = {**well, "a": replace(well["a"], **changes)}

    by_check = evaluate_checks(CheckContext(asked, told))
    errors = {
        finding.message.partition("; this host is not")[0]
        for findings in by_check.values()
        for finding in findings
        if finding.level is Level.ERROR
    }

    refused: set[str] = set()
    try:
        build_plan(asked, told)
    except NotReady as error:
        refused = {problem.message for problem in error.problems}
    assert errors == refused


def test_every_requirement_belongs_to_a_check() -> None:
    """So that nothing is refused that no check reports."""
    assert REQUIREMENTS.keys() <= all_checks().keys()


def levels(check: str, looked_at: CheckContext) -> list[Level]:
    """What a check finds that is not fine."""
    found = [one.level for one in all_checks()[check](looked_at)]
    return [level for level in found if level is not Level.OK]


def test_nothing_is_wrong_with_what_is_well() -> None:
    """Three equal hosts."""
    for check in all_checks():
        assert levels(check, case()) == []


def test_where_nobody_answers_no_check_fails_itself() -> None:
    """It has nothing to say, but for the one that says so."""
    unreachable = {name: Problem(name, "no", "x") for name in "abc"}
    nobody = replace(case(), facts={}, clock_offsets={}, unreachable=unreachable)
    for check in all_checks():
        assert levels(check, nobody) == [Level.ERROR] * (3 if check == "reach" else 0)


def test_a_host_whose_setup_fails_is_not_judged_any_further() -> None:
    """Nothing else is known of it."""
    failed = SetupResult(1, "module: not found")
    ill = case(b=host("b", setup=failed, python=Interpreter(), gpus=()))
    for check in all_checks():
        assert levels(check, ill) == [Level.ERROR] * (check == "setup")
