"""Checks of hosts that are well or not judged; a launch refuses exactly what they call errors."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from runner.checks.base import CheckContext, all_checks, evaluate_checks
from runner.core.errors import Level, NotReady, Problem
from runner.core.planning.build_plan import build_plan
from runner.core.planning.readiness import REQUIREMENTS
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
        {"disk_free": 0, "gpus": (), "reserved_port": 0, "port_error": "taken"},
    ],
)
def test_launch_refuses_what_checks_call_an_error(changes: dict[str, Any]) -> None:
    """For every fact of a host that a launch depends on."""
    well = {
        name: facts(name, f"eth0 10.0.0.{number}/24", gpu_count=1)
        for number, name in enumerate("ab", 1)
    }
    told = {**well, "a": replace(well["a"], **changes)}

    by_check = evaluate_checks(CheckContext(SPEC, told))
    errors = {
        finding.message.partition("; this host is not")[0]
        for findings in by_check.values()
        for finding in findings
        if finding.level is Level.ERROR
    }

    refused: set[str] = set()
    try:
        build_plan(SPEC, told)
    except NotReady as error:
        refused = {problem.message for problem in error.problems}
    assert errors == refused


def test_every_requirement_belongs_to_a_check() -> None:
    """So that nothing is refused that no check reports."""
    assert REQUIREMENTS.keys() <= all_checks().keys()


WELL = case()
UNREACHABLE = {name: Problem(name, "no", "x") for name in "abc"}
SILENT = replace(WELL, facts={}, clock_offsets={}, unreachable=UNREACHABLE)
UNSET = case(b=host("b", setup=SetupResult(1, "module: not found"), python=Interpreter(), gpus=()))


@pytest.mark.parametrize(
    ("looked_at", "errors"),
    [(WELL, {}), (SILENT, {"reach": 3}), (UNSET, {"setup": 1})],
    ids=["all are well", "nobody answers", "a setup fails"],
)
def test_what_nothing_is_known_of_is_not_judged(
    looked_at: CheckContext, errors: dict[str, int]
) -> None:
    """One check says why; no other has anything to say, or fails itself."""
    for name, check in all_checks().items():
        levels = [found.level for found in check(looked_at) if found.level is not Level.OK]
        assert levels == [Level.ERROR] * errors.get(name, 0), name


@pytest.mark.promise(12)
def test_commands_to_paste_have_what_a_host_says_as_one_word() -> None:
    """Neither the torch that most have, nor a module, nor another run is a command of its own."""
    evil = "x;$(date)"
    python = Interpreter("/usr/bin/python3", "3.11.2", torch=evil, missing=(evil,))
    liar = replace(facts("a", "eth0 10.0.0.1/24"), python=python, kept_by=evil, workdir=evil)
    liar = replace(liar, workdir_error="it is not yours", workdir_exposed="inside")
    told = {"a": liar, "b": facts("b", "eth0 10.0.0.2/24")}
    hints = [
        finding.hint
        for findings in evaluate_checks(CheckContext(SPEC, told)).values()
        for finding in findings
        if evil in finding.hint
    ]
    assert len(hints) == 4
    assert not [hint for hint in hints if evil in re.sub("'[^']*'", "", hint)]
