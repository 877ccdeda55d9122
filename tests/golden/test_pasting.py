"""Commands of `dry_run`, pasted into a real shell, start exactly what a launch would."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from runner.core.planning.build_plan import build_plan
from runner.core.spec import Node, Secret, Task
from runner.core.wire.plan import CodeRef
from runner.ui.reports.report import render_dry_run
from tests.golden.builders import TORCH, facts, spec
from tests.unit.release_builders import release, store

TELL = """\
#!/bin/sh
printf '%s\\0' "$#" "$(pwd -P)" "$0" "$@"
exec env -0
"""
HARD = ("$5 & up", "two\nlines", "", "${local_rank}", "it's", '"', "\\", "~/x", "=ls", "*", "→🙂")


@pytest.mark.parametrize("kind", ["script", "module", "command"])
def test_pasted_text_starts_what_a_launch_would(kind: str, tmp_path: Path) -> None:
    """A shell makes of it the argv and environment of the plan, to the letter.

    It works in a copy of the release, in the user's sub-folder, and may write there. Setup runs
    before, in the code's folder; what it exports reaches the program.
    """
    home = tmp_path / "it's my home"
    python = home / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(TELL)
    python.chmod(0o700)
    made = release({"a b/train.py": b"x"}, modes={"a b/train.py": 0o444}, links={"l": "a b"})
    store(home / ".runner", made)
    host = replace(
        facts("gpu1", "eth0 10.0.0.1/24", gpu_count=2, workdir=str(home / ".runner"), project=""),
        python=replace(TORCH, executable=str(python)),
        has_release=True,
    )
    target = str(python) if kind == "command" else "my.train"
    wanted = spec(
        Node("gpu1", "10.0.0.1"),
        task=Task(name="t", kind=kind, target=target, words=HARD),
        setup=("export A=$PWD", "if true; then", "export BOTH=lines", "fi"),
        env={f"USER_{index}": text for index, text in enumerate(HARD)},
        secrets={"TOKEN": Secret("it's $HOME")},
    )
    code = CodeRef(release=made.name, subdirectory="a b", python_path=("..",))
    plan = build_plan(wanted, {"gpu1": host}, code=code)
    share = plan.node("gpu1")

    text = render_dry_run(plan)
    environ = {"HOME": str(home), "PATH": "/usr/bin:/bin", "TOKEN": "it's $HOME"}
    argv = ["sh", "-c", text[text.index("# gpu1") :]]
    done = subprocess.run(argv, env=environ, capture_output=True, check=True, timeout=60)

    count, cwd, *told = done.stdout.decode().split("\0")
    split = 1 + int(count)
    env = dict(text.split("=", 1) for text in told[split:-1])
    work = Path(cwd)
    assert work == home / ".runner" / "runs" / plan.run_id / "gpu1" / "work" / "a b"
    assert (work / "train.py").stat().st_mode & 0o777 == 0o644
    assert (work.parent / "l" / "train.py").read_text() == "x"
    assert told[:split] == list(share.command)
    assert {name: env[name] for name in share.env} == {**share.env, "PYTHONPATH": str(work.parent)}
    assert env["TOKEN"] == "it's $HOME"
    assert (env["A"] != cwd, env["BOTH"]) == (True, "lines")
