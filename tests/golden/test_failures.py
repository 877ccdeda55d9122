"""The table of known failures: made from the code, and from real output of ranks."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from runner.core.outcome.known_failures import ANYWHERE, explain, known_failures

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "troubleshooting.md"
WROTE = ROOT / "tests" / "fixtures" / "failures"
HEAD = "| name | what it means | what to do |\n|---|---|---|\n"


def table() -> str:
    rows: list[tuple[str, str, str]] = []
    for known in known_failures():
        if rows and rows[-1][0] == known.name:  # another way to know it
            continue
        facts = {known.fact: known.values[0] if known.values else ""} if known.fact else {}
        explained = explain(*what_is_known(known.name, facts))
        assert explained is not None
        assert explained.name == known.name
        rows.append((known.name, explained.meaning, explained.remedy))
    return "".join(f"| `{name}` | {cell(means)} | {cell(cure)} |\n" for name, means, cure in rows)


def what_is_known(name: str, facts: dict[str, str]) -> tuple[list[str], dict[str, str]]:
    """The lines of a file, and the facts; its first line may be how the program exited."""
    lines = (WROTE / f"{name}.txt").read_text().splitlines()
    if exited := re.match(r"exited with (\d+)$", lines[0]):
        facts = {**facts, "exit": exited[1]}
    return lines, {**ANYWHERE, **facts}


def cell(text: str) -> str:
    """Text as a table takes it."""
    return re.sub(r"([|<>])", r"\\\1", text)


def test_the_table_is_what_the_code_knows(request: pytest.FixtureRequest) -> None:
    """It is the last of the page; read the diff after --update-golden."""
    before, _, shown = PAGE.read_text(encoding="utf-8").partition(HEAD)
    if request.config.getoption("--update-golden", default=False):
        PAGE.write_text(before + HEAD + table(), encoding="utf-8")
    else:
        assert shown == table()


@pytest.mark.parametrize("name", sorted(file.stem for file in WROTE.glob("*.*.txt")))
def test_other_words_for_the_same(name: str) -> None:
    """`NAME.WHERE.txt`: what another program, shell or library writes of it."""
    explained = explain(*what_is_known(name, {}))
    assert explained is not None
    assert explained.name == name.partition(".")[0]
    assert not re.search(r"[{}]|None", explained.meaning + explained.remedy)
