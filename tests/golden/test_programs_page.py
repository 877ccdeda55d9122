"""The page on programs: its commands are those of a launch."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from runner.config.spec_builder import build_spec
from runner.control.assumed_facts import assumed_facts
from runner.core import shell
from runner.core.planning.build_plan import build_plan
from tests.unit.config.test_config import asked

PAGE = Path(__file__).parents[2] / "docs" / "programs.md"
TEXT = PAGE.read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^```yaml\n(.*?)^```\n```\n(.*?)\n```$", TEXT, re.DOTALL | re.MULTILINE)
ELSEWHERE = re.compile(r"^(DIST_|OMP_|RUNNER_|GLOO_|TP_|NCCL_)")


def test_every_example_is_read() -> None:
    """Each file has its command."""
    assert len(EXAMPLES) == TEXT.count("```yaml")


@pytest.mark.parametrize(("written", "command"), EXAMPLES, ids=range(len(EXAMPLES)))
def test_the_command_is_that_of_the_file(written: str, command: str) -> None:
    """On the first of two hosts, less what every rank gets."""
    task = {f"task.{key}": value for key, value in yaml.safe_load(written).items()}
    nodes: dict[str, object] = {"gpu1": {}, "gpu2": {}}
    changes = {"task.script": None, **task, "cluster.nodes": nodes, "run_id": "run"}
    spec, _ = build_spec(asked(changes), [])
    share = build_plan(*assumed_facts(spec)[:2]).nodes[0]
    env = {name: value for name, value in share.env.items() if not ELSEWHERE.match(name)}
    line = shell.line(share.command, paths=len(share.command) - share.arg_count)
    assert f"{shell.assignments(env)} {line}".strip() == command.replace("=RUN", "=run")
