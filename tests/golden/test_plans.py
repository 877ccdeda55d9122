"""Plans as `dry_run` shows them, and some of them whole, as data."""

from __future__ import annotations

import json

import pytest

from runner.core.wire.codec import decode, encode
from runner.core.wire.plan import Plan
from tests.golden.cases import CASES, SECRETS, Case
from tests.golden.conftest import PLANS, Check
from tests.golden.test_containers import ENGINES as CONTAINERS

WHOLE = {
    "chosen-gpus",
    "hard-arguments",
    "pushed",
    "c10d-elastic",
    "relaunch",
}
"""Cases whose plans are also on record as data."""


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_plan_is_as_recorded(case: Case, check_golden: Check) -> None:
    """To the letter, as a person sees it and as data; what is on disk is the plan again."""
    check_golden(f"{case.name}.txt", case.text())
    plan = case.plan()
    data = json.dumps(encode(plan), indent=1) + "\n"
    if case.name in WHOLE:
        check_golden(f"{case.name}.json", data)
    assert decode(Plan, json.loads(data)) == plan


def test_every_golden_file_has_its_case() -> None:
    """No golden file outlives its case."""
    expected = {f"{case.name}.txt" for case in CASES}
    expected |= {f"{name}.json" for name in WHOLE}
    expected |= {f"container_{engine}.json" for engine in CONTAINERS}
    assert {path.name for path in PLANS.iterdir()} == expected


@pytest.mark.promise(7)
def test_no_plan_holds_a_secret() -> None:
    """It names secrets, on the screen and on record."""
    for text in (SECRETS.text(), json.dumps(encode(SECRETS.plan()))):
        assert "WANDB_API_KEY" in text
        assert "hunter" not in text
