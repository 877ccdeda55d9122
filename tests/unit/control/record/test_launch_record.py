"""What a verb reads in place of the YAML of a run on record."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runner.control.record.launch_record import PLAN_FILE, read_launch, record_content
from runner.core.errors import ConfigError
from runner.core.spec import Node, Progress, Secret, Ssh, Task
from tests.golden.builders import plan, request


def test_what_reaches_the_hosts_comes_back(tmp_path: Path) -> None:
    """Nodes with their spares, log-in, folders and limits; not what the task is or gets."""
    spare = Node("b", "gpu-b", user="bob", env={"TOKEN": "t-1"})
    fields: dict[str, Any] = {
        "ssh": Ssh(user="ada", port=2222, jump=("gate",)),
        "workdir": "/scratch/ada",
        "lost_s": 3.0,
        "progress": Progress(r"it (\d+)"),
        "ui": "plain",
        "console_ranks": (1, 3),
        "spares": (spare,),
    }
    env = {"HF_TOKEN": "e-1"}
    asked = request(tmp_path, **fields, env=env, secrets={"KEY": Secret("s-1")})
    asked = replace(asked, config_dirs=("more",))
    text = json.dumps(record_content(plan(1), asked))
    assert not [word for word in ("s-1", "e-1", "t-1") if word in text]
    (tmp_path / PLAN_FILE).write_text(text)
    found = read_launch(tmp_path)
    assert found.spec.nodes == (*asked.spec.nodes, replace(spare, env={}))
    for name in ("run_id", "lost_s", "pull_outputs", "ui", "console_ranks"):
        assert getattr(found.spec, name) == getattr(asked.spec, name)
    assert found.spec.cluster == replace(asked.spec.cluster, env={})
    assert found.spec.progress.pattern == r"it (\d+)"
    assert (found.config_dirs, found.run_dir) == ((str(Path("more").absolute()),), tmp_path)
    assert found.spec.task == Task(nnodes=asked.spec.task.nnodes)
    assert found.selector == ""


@pytest.mark.parametrize("text", ["", "[]", "{}", json.dumps({"launch": {}})])
def test_a_damaged_file_is_one_problem(tmp_path: Path, text: str) -> None:
    """It names the file, and the way on."""
    (tmp_path / PLAN_FILE).write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_launch(tmp_path)
    (problem,) = caught.value.problems
    assert problem.subject == str(tmp_path / PLAN_FILE)
    assert "--cluster NAME" in problem.hint
    assert not re.search(r"__|\b_|argument", problem.message)
