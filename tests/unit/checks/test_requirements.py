"""One table of requirements: a launch refuses exactly what the checks call an error."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from runner.checks.base import CheckContext, all_checks, evaluate_checks
from runner.core.errors import NotReady
from runner.core.model.facts import Interpreter, SetupResult
from runner.core.model.results import Level
from runner.core.planning.build_plan import build_plan
from runner.core.planning.readiness import REQUIREMENTS
from runner.core.spec import Node
from tests.golden.builders import LO, facts, interface, spec

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
