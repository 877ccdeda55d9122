"""Checks of hosts that are well, that nobody reaches, and whose setup fails."""

from __future__ import annotations

from dataclasses import replace

from runner.checks.base import CheckContext, all_checks
from runner.core.errors import Problem
from runner.core.model.facts import Interpreter, SetupResult
from runner.core.model.results import Level
from tests.golden.test_findings import case, host


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
