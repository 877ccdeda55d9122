"""Commands of `dry_run`, pasted into a real shell, start exactly what a launch would."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from runner.core.planning.build_plan import build_plan
from runner.core.spec import Node, Secret, Task
from runner.core.wire.facts import Facts
from runner.core.wire.plan import CodeRef, Plan
from runner.ui.reports.report import render_dry_run
from tests.golden.builders import TASKS_HASH, TORCH, facts, spec
from tests.unit.release_builders import release, store

TELL = """\
#!/bin/sh
printf '%s\\0' "$#" "$(pwd -P)" "$0" "$@"
exec env -0
"""
SHELLS_OWN = {"PWD", "OLDPWD", "SHLVL", "_"}
TEXT = st.text("".join(map(chr, range(1, 256))) + "→🙂", max_size=12)
WORDS = st.sampled_from(
    ["$5", "${local_rank}", "it's", '"', "a b", "\n", "\\", "~/x", "=ls", "*", ""]
)
NAMES = st.from_regex(r"USER_[A-Z]{1,4}", fullmatch=True)


@dataclass(frozen=True)
class Host:
    """A machine with a home, a folder of code, and a Python that only tells how it was started."""

    home: Path
    project: Path
    python: Path

    def facts(self, node: str, interface: str, **others: Any) -> Facts:
        python = replace(TORCH, executable=str(self.python))
        workdir = str(self.home / ".runner")
        return facts(
            node, interface, python=python, project=str(self.project), workdir=workdir, **others
        )

    def paste(self, text: str, secrets: Mapping[str, str]) -> tuple[list[str], dict[str, str], str]:
        """Run `text` in a shell; return the argv, environment and folder of what it started."""
        environ = {"HOME": str(self.home), "PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8", **secrets}
        done = subprocess.run(
            ["sh", "-c", text], env=environ, capture_output=True, check=True, timeout=60
        )
        count, cwd, *told = done.stdout.decode().split("\0")
        split = 1 + int(count)
        seen = dict(text.split("=", 1) for text in told[split:-1])
        inherited = (environ.keys() - secrets.keys()) | SHELLS_OWN
        return told[:split], {k: v for k, v in seen.items() if k not in inherited}, cwd


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Host:
    """One for all tests: nothing is written there."""
    home = tmp_path_factory.mktemp("ada")
    project = home / "it's my code"
    python = home / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(TELL)
    python.chmod(0o700)
    project.mkdir()
    return Host(home, project, python)


def of_node(plan: Plan, node: str) -> str:
    """Return what a person would copy for one node: from its title to the next blank line."""
    text = render_dry_run(plan)
    return text[text.index(f"# {node}") :]


def planned(host: Host, *, task: Task, **others: Any) -> Plan:
    return build_plan(
        spec(Node("gpu1", "10.0.0.1"), task=task, **others),
        {"gpu1": host.facts("gpu1", "eth0 10.0.0.1/24", gpu_count=2)},
        code=CodeRef(tasks_hash=TASKS_HASH),
    )


@settings(max_examples=15, deadline=None, database=None)
@given(
    args=st.lists(TEXT | WORDS, max_size=4).map(tuple),
    env=st.dictionaries(NAMES, TEXT | WORDS, max_size=3),
    secrets=st.dictionaries(NAMES.map(lambda name: f"{name}_KEY"), TEXT, max_size=2),
    kind=st.sampled_from(["script", "module", "command"]),
)
@example(args=("$5 & up", "two\nlines", ""), env={"USER_A": "=x"}, secrets={}, kind="command")
def test_pasted_text_starts_what_a_launch_would(
    host: Host, args: tuple[str, ...], env: dict[str, str], secrets: dict[str, str], kind: str
) -> None:
    """A shell makes of it the argv, the environment and the folder of the plan, to the letter."""
    hidden = {name: Secret(text) for name, text in secrets.items()}
    plan = planned(
        host, task=Task(name="t", kind=kind, target="my.train", words=args), env=env, secrets=hidden
    )
    share = plan.node("gpu1")

    pasted = host.paste(of_node(plan, "gpu1"), secrets)

    assert pasted == (list(share.command), {**share.env, **secrets}, str(host.project))


def test_pushed_code_is_copied_first(host: Host) -> None:
    """The text works in a copy of the release, in the user's sub-folder, and may write there.

    Setup runs before, in the code's folder; what it exports reaches the program.
    """
    made = release({"a b/train.py": b"x"}, modes={"a b/train.py": 0o444}, links={"l": "a b"})
    store(host.home / ".runner", made)
    shutil.rmtree(host.home / ".runner" / "runs", ignore_errors=True)
    told = replace(host.facts("gpu1", "eth0 10.0.0.1/24"), project="", has_release=True)
    setup = ("export A=$PWD", "if true; then", "export BOTH=lines", "fi")
    task = Task(name="t", kind="script", target="train.py")
    plan = build_plan(
        spec(Node("gpu1", "10.0.0.1"), task=task, setup=setup),
        {"gpu1": told},
        code=CodeRef(release=made.name, subdirectory="a b", python_path=("..",)),
    )

    _, env, cwd = host.paste(of_node(plan, "gpu1"), {})

    work = Path(cwd)
    assert work == host.home / ".runner" / "runs" / plan.run_id / "gpu1" / "work" / "a b"
    assert (work / "train.py").stat().st_mode & 0o777 == 0o644
    assert (work.parent / "l" / "train.py").read_text() == "x"
    assert env["PYTHONPATH"] == str(work.parent)
    assert env["A"] != cwd
    assert env["BOTH"] == "lines"
