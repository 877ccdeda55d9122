"""Causes of imports that failed: what the files of the project say."""

from __future__ import annotations

from dataclasses import replace

import pytest

from runner.core.outcome.known_failures import ProjectFiles, explain_import
from runner.core.planning.build_plan import build_plan
from runner.core.spec import Node, Task
from runner.core.wire.plan import Plan
from tests.golden.builders import facts, spec

FLAT = {"pkg/__init__.py", "pkg/train.py", "pkg/utils.py", "scripts/run.py", "train.py"}
SRC = {"src/pkg/__init__.py", "src/pkg/train.py", "src/pkg/sub/deep.py", "tools/run.py"}
NOT_FOUND = "ModuleNotFoundError: No module named"
OF_RUNPY = "/opt/venv/bin/python: No module named"


def planned(target: str, env: dict[str, str | None] | None = None, entry: str = "torchrun") -> Plan:
    kind = "script" if target.endswith(".py") else "module"
    task = Task(
        name="t", kind=kind, target=target, words=("--lr", "0.1"), env=env or {}, entry=entry
    )
    return build_plan(spec(Node("a", "10.0.0.1"), task=task), {"a": facts("a", "eth0 10.0.0.1/24")})


def explained(
    error: str, made: Plan, paths: set[str], absent: dict[str, str] | None = None
) -> tuple[str, str] | None:
    return explain_import(
        error, made, ProjectFiles(paths, lambda path: (absent or {}).get(path, ""))
    )


NO = "the project has no module"
NEAR = "did you mean pkg."
SET_SRC = "task.env.PYTHONPATH=src"
IN_SRC = "is in src/, where Python does not look"


@pytest.mark.parametrize("entry", ["torchrun", "plain", "launch"])
@pytest.mark.parametrize(
    ("error", "target", "paths", "meaning", "remedy"),
    [
        (f"{OF_RUNPY} pkg.trian", "pkg.trian", FLAT, f"{NO} pkg.trian", f"{NEAR}train?"),
        (f"{OF_RUNPY} pkg.train", "pkg.train", SRC, f"pkg.train {IN_SRC}", SET_SRC),
        (f"{NOT_FOUND} 'pkg'", "tools/run.py", SRC, f"pkg {IN_SRC}", SET_SRC),
        (f"{NOT_FOUND} 'pkg'", "scripts/run.py", FLAT, "pkg is in ./, wh", "task.env.PYTHONPATH=."),
        (f"{NOT_FOUND} 'pkg.utlis'", "train.py", FLAT, f"{NO} pkg.utlis", f"{NEAR}utils?"),
    ],
)
def test_the_projects_files_say_what_to_type(
    error: str, target: str, paths: set[str], meaning: str, remedy: str, entry: str
) -> None:
    """Whatever starts the ranks."""
    told = explained(error, planned(target, entry=entry), paths)
    assert told is not None
    assert (told[0].startswith(meaning), told[1]) == (True, remedy), told


@pytest.mark.parametrize(
    ("name", "target", "paths"),
    [
        ("apex", "pkg.train", FLAT),  # a library's
        ("pkg.sub.deep", "pkg.train", SRC),  # where PYTHONPATH finds it
        ("deep", "pkg.train", {"src/pkg/deep/__init__.py", *SRC}),  # a module of a package's
    ],
)
def test_of_other_modules_the_files_say_nothing(name: str, target: str, paths: set[str]) -> None:
    """They are to be installed, or failed for a reason of their own."""
    made = planned(target, {"PYTHONPATH": "src"})
    assert explained(f"{NOT_FOUND} '{name}'", made, paths) is None


def test_a_file_that_was_not_pushed_is_named_with_the_rule() -> None:
    """Beside the script, and in the folders of PYTHONPATH, which a cure keeps."""
    made = planned("scripts/run.py", {"PYTHONPATH": "lib"})
    absent = {"lib/secrets/__init__.py": "git leaves it out"}
    assert explained(f"{NOT_FOUND} 'secrets'", made, FLAT, absent) == (
        "lib/secrets/__init__.py was not pushed: git leaves it out",
        "correct that rule, or, if it is git's, `git add -f lib/secrets/__init__.py`",
    )
    assert explained(f"{NOT_FOUND} 'pkg'", made, SRC) == (
        "pkg is in src/, where Python does not look",
        "task.env.PYTHONPATH=lib:src",
    )


@pytest.mark.promise(12)
def test_a_plan_of_a_host_that_lies_is_explained_all_the_same() -> None:
    """Of a command without words, and with a path that would run a command where it is pasted."""
    plan = planned("tools/run.py")
    liar = replace(plan.nodes[0], arg_count=99, env={"PYTHONPATH": "$(date)"})
    told = explained(f"{NOT_FOUND} 'pkg'", replace(plan, nodes=(liar,)), SRC)
    assert told == (f"pkg {IN_SRC}", "'task.env.PYTHONPATH=$(date):src'")
