"""The page of known failures: made from the code, and from real output of ranks."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest

from runner.core.outcome.known_failures import FAILURE_PATTERNS, SIGNAL_EXPLANATIONS, explain

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "failures.md"
WROTE = ROOT / "tests" / "fixtures" / "failures"
HEAD = """\
# Known failures

What ranks write, or die of, that is recognised at the end of a run and by `runner why`.
The name stands in `result.json` as `diagnosis.cause`. What is not in this list is shown as it is:
the first failing rank, its host, and its last traceback. Each entry of
`runner/core/outcome/known_failures.py` has an example in `tests/fixtures/failures`; this page is
made from both by
`pytest tests/golden/test_failures.py --update-golden`.

| name | what it means | cure |
|---|---|---|
"""


def page() -> str:
    rows = []
    for known in FAILURE_PATTERNS:
        explained = explain((WROTE / f"{known.name}.txt").read_text().splitlines())
        assert explained is not None
        assert explained.name == known.name
        rows.append((known.name, explained.meaning, explained.remedy))
    for signum, (means, cure) in SIGNAL_EXPLANATIONS.items():
        name = signal.Signals(signum).name
        rows.append((name.lower(), f"killed by {name}: {means}", cure))
    return HEAD + "".join(
        f"| `{name}` | {cell(means)} | {cell(cure)} |\n" for name, means, cure in rows
    )


def cell(text: str) -> str:
    """Text as a table takes it."""
    return re.sub(r"([|<>])", r"\\\1", text)


def test_the_page_is_what_the_code_knows(request: pytest.FixtureRequest) -> None:
    """Read the diff after --update-golden."""
    if request.config.getoption("--update-golden", default=False):
        PAGE.write_text(page(), encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == page()
