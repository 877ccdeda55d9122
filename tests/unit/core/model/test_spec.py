"""The spec, and what follows from it."""

from __future__ import annotations

import pytest

from runner.core.model.spec import Node, PortRange, Task
from tests.golden.builders import spec


@pytest.mark.parametrize(
    ("rule", "text", "fixed"),
    [
        (PortRange(), "auto", False),
        (PortRange(29500, 29500), "29500", True),
        (PortRange(29500, 29600), "29500-29600", False),
    ],
    ids=["auto", "port", "range"],
)
def test_port_rule_reads_as_in_the_yaml(rule: PortRange, text: str, *, fixed: bool) -> None:
    """It prints as it is written, and says whether there is a choice."""
    assert (str(rule), rule.is_fixed) == (text, fixed)


@pytest.mark.parametrize(
    ("task", "file"),
    [
        (Task("t", "module", "runner.tasks.resnet18"), "resnet18.py"),
        (Task("t", "module", "runner.tasks.vision.vit"), "vision/vit.py"),
        (Task("t", "module", "my.runner.tasks.resnet18"), ""),
        (Task("t", "script", "runner.tasks.resnet18"), ""),
        (Task("t", "command", "julia"), ""),
    ],
    ids=["ours", "in a folder", "a user's module", "a user's script", "command"],
)
def test_tasks_of_ours_are_told_by_their_module(task: Task, file: str) -> None:
    """They travel with the run; everything else is the user's."""
    assert task.shipped_file == file


def test_master_is_the_first_node() -> None:
    """Rank 0 is there."""
    assert spec(Node("b", "b"), Node("a", "a")).master == Node("b", "b")
