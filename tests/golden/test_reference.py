"""The pages: configuration and known failures are made from the code; what one names is there."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import yaml

from docs import reference
from runner.core.outcome.known_failures import ANYWHERE, explain, known_failures
from runner.core.spec import Cluster, Node, SlurmSpec, Ssh, keys_of
from tests.golden.here import Here

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)#?([^)\s]*)\)")
MODULE = re.compile(r"`([a-z_]+/[a-z_/]+\.py)`")


def anchors(page: Path) -> set[str]:
    """Return the names of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_a_page_names_is_there(page: Path) -> None:
    """Files and headings that it links to, and modules."""
    text = page.read_text(encoding="utf-8")
    for path, anchor in LINK.findall(text):
        target = page.parent / path if path else page
        assert target.exists(), path
        assert not anchor or anchor in anchors(target), f"{path}#{anchor}"
    for module in MODULE.findall(text):
        assert (ROOT / module).exists() or (ROOT / "runner" / module).exists(), module


def test_the_page_is_current() -> None:
    """`python -m docs.reference > docs/configuration.md` makes it."""
    assert (ROOT / "docs" / "configuration.md").read_text() == reference.render()


def test_the_full_example_has_every_key_of_a_cluster() -> None:
    """And no other; the nodes' keys are named in it too."""
    text = (ROOT / "conf" / "cluster" / "lab3.yaml").read_text()
    example = yaml.safe_load(text)
    assert set(example) == {"defaults", *keys_of(Cluster)}
    assert set(example["ssh"]) == {*keys_of(Ssh)}
    assert set(example["slurm"]) == {*keys_of(SlurmSpec)}
    head = text.partition("\nssh:")[0]
    assert [name for name in keys_of(Node) if name not in head] == []


def test_every_example_composes(here: Here) -> None:
    """Each line of shell on the page, with the files on the page; they mean what it says."""
    page = reference.render()
    here.write(dict(re.findall(r"```yaml\n# (\S+)\n(.*?)```", page, re.DOTALL)))
    lines = re.findall(r"^runner (.*)$", page, re.MULTILINE)
    runs = [run for line in lines for run in here(*shlex.split(line)).runs]
    assert len(runs) == len(lines) + 1 == 11
    plain, changed, alone, added, quoted, shell, passed_on, first, second, few, two = runs
    assert plain.spec.task.words == ("--lr", "0.1", "--amp", "--sizes", "1", "2")
    assert [node.gpu_count for node in changed.spec.nodes] == [None, 4]
    assert alone.spec.task.words == ("--epochs", "3")
    assert (len(added.spec.nodes), "--amp" in added.spec.task.words) == (3, False)
    assert quoted.spec.task.words[-2:] == ("--note", "a, b and c")
    assert shell.spec.task.words == ("-c", "echo $RANK")
    assert passed_on.spec.task.words == ("--lr", "0.01", "--amp", "--sizes", "1", "2")
    assert (first.spec.task.words[1], second.spec.task.words[1]) == ("0.1", "0.01")
    assert [node.name for node in few.spec.nodes][2:4] == ["gpu04", "gpu05"]
    assert [node.gpu_count for node in two.spec.nodes] == [8, 4]


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
