"""Rules for the source of `runner/`: what module docstrings begin with, and sizes."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import pytest

PACKAGE = Path(__file__).parents[2] / "runner"
FILES = sorted(PACKAGE.rglob("*.py"))

QUESTION = re.compile(r"(What|Whether|Who|Whose|Whom|How|Where|When|Why)\b")
MAX_FILE_LINES, MAX_FUNCTION_LINES, MEDIAN_FUNCTION_LINES = 400, 60, 10
MAX_ATTRIBUTES = 15
MAX_FILES = 15
Function = (ast.FunctionDef, ast.AsyncFunctionDef)


@functools.cache
def parsed(path: Path) -> ast.Module:
    """Return a module's syntax tree."""
    return ast.parse(path.read_text())


def ids(path: Path) -> str:
    """Return a file's name in the report of a test."""
    return str(path.relative_to(PACKAGE))


@pytest.mark.parametrize("path", FILES, ids=ids)
def test_a_module_docstring_names_its_mechanism(path: Path) -> None:
    """The first sentence is a noun of the field, and no question that the module answers."""
    text = ast.get_docstring(parsed(path)) or ""
    assert text
    assert not QUESTION.match(text), text.splitlines()[0]


@pytest.mark.parametrize("path", FILES, ids=ids)
def test_a_file_can_be_read_in_one_go(path: Path) -> None:
    """Neither it nor one of its functions is long."""
    assert len(path.read_text().splitlines()) <= MAX_FILE_LINES
    long = [
        (node.name, lines)
        for node in ast.walk(parsed(path))
        if isinstance(node, Function)
        and (lines := (node.end_lineno or 0) - node.lineno + 1) > MAX_FUNCTION_LINES
    ]
    assert long == []


def test_most_functions_are_short() -> None:
    """In the median."""
    lengths = [
        (node.end_lineno or 0) - node.lineno + 1
        for path in FILES
        for node in ast.walk(parsed(path))
        if isinstance(node, Function)
    ]
    assert median(lengths) <= MEDIAN_FUNCTION_LINES


def attributes_of(node: ast.ClassDef) -> Iterator[str]:
    """Yield the names of what an instance keeps."""
    for statement in node.body:
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            yield statement.target.id
        if not isinstance(statement, Function):
            continue
        for part in ast.walk(statement):
            if (
                isinstance(part, ast.Attribute)
                and isinstance(part.ctx, ast.Store)
                and isinstance(part.value, ast.Name)
                and part.value.id == "self"
            ):
                yield part.attr


@pytest.mark.parametrize("path", FILES, ids=ids)
def test_a_class_keeps_little(path: Path) -> None:
    """One with many attributes says in its docstring why it is large on purpose."""
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.ClassDef) and len(set(attributes_of(node))) > MAX_ATTRIBUTES:
            assert "on purpose" in (ast.get_docstring(node) or ""), node.name


def test_no_folder_is_crowded() -> None:
    """A folder is a mechanism; only the checks, one file each, may be many."""
    crowded = {
        str(folder.relative_to(PACKAGE)): count
        for folder in {path.parent for path in FILES}
        if (count := len([path for path in folder.glob("*.py") if path.stem != "__init__"]))
        > MAX_FILES
        and folder.name not in ("checks", "commands")
    }
    assert crowded == {}


def test_git_knows_every_module() -> None:
    """A pattern of .gitignore that matches a folder of ours keeps it out of clones and wheels."""
    folders = ("runner", "tests", "benchmarks")
    ignored = ["git", "ls-files", "--others", "--ignored", "--exclude-standard", *folders]
    listed = subprocess.run(
        ignored, cwd=PACKAGE.parent, capture_output=True, text=True, check=True
    ).stdout
    assert [name for name in listed.splitlines() if name.endswith(".py")] == []
    packages = {path.parent for path in PACKAGE.rglob("*.py")}
    assert [path for path in packages if not (path / "__init__.py").exists()] == []
