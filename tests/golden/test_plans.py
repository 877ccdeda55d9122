"""Whole plans, as data and as `dry_run` shows them."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from runner.core.codec import decode, encode
from runner.core.model.plan import Plan
from runner.core.planning.container.base import ENGINES
from tests.golden.cases import CASES, SECRETS, Case
from tests.golden.conftest import PLANS

Check = Callable[[str, str], None]
every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


@every_case
def test_plan_is_as_recorded(case: Case, check_golden: Check) -> None:
    """The plan of each case is, to the letter, the one on record."""
    check_golden(f"{case.name}.json", json.dumps(encode(case.plan()), indent=1) + "\n")


@every_case
def test_rehearsal_is_as_recorded(case: Case, check_golden: Check) -> None:
    """What `dry_run` shows of each case is, to the letter, what is on record."""
    check_golden(f"{case.name}.txt", case.text())


@every_case
def test_recorded_plan_reads_back(case: Case) -> None:
    """A plan on disk is the plan again when it is read."""
    plan = case.plan()

    assert decode(Plan, json.loads(json.dumps(encode(plan)))) == plan


def test_every_golden_file_has_its_case() -> None:
    """No golden file outlives its case."""
    expected = {f"{case.name}.{kind}" for case in CASES for kind in ("json", "txt")}
    expected |= {f"container_{engine}.json" for engine in ENGINES}  # of test_containers

    assert {path.name for path in PLANS.iterdir()} == expected


@pytest.mark.parametrize("kind", ["json", "txt"])
def test_no_golden_file_holds_a_secret(kind: str) -> None:
    """A plan names secrets, and never holds one."""
    text = (PLANS / f"{SECRETS.name}.{kind}").read_text(encoding="utf-8")

    assert "WANDB_API_KEY" in text
    assert "hunter" not in text
