"""The spec, and what follows from it."""

from __future__ import annotations

import pytest

from runner.core.spec import Task


@pytest.mark.parametrize(
    ("task", "file"),
    [
        (Task(name="t", kind="module", target="runner.tasks.resnet18"), "resnet18.py"),
        (Task(name="t", kind="module", target="runner.tasks.vision.vit"), "vision/vit.py"),
        (Task(name="t", kind="module", target="runner.examples.ddp"), "ddp.py"),
        (Task(name="t", kind="module", target="my.runner.tasks.resnet18"), ""),
        (Task(name="t", kind="command", target="julia"), ""),
    ],
    ids=["ours", "in a folder", "an example", "a user's module", "command"],
)
def test_tasks_of_ours_are_told_by_their_module(task: Task, file: str) -> None:
    """They travel with the run; everything else is the user's."""
    assert task.shipped_file == file
