"""The spec, and what follows from it: tasks of ours, and secrets that stay out of all text."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from runner.core.spec import Node, Secret, Spec, Task
from runner.core.wire.codec import encode


@pytest.mark.parametrize(
    ("target", "file"),
    [
        ("runner.tasks.resnet18", "resnet18.py"),
        ("runner.tasks.vision.vit", "vision/vit.py"),
        ("runner.examples.ddp", "ddp.py"),
        ("my.runner.tasks.resnet18", ""),
    ],
)
def test_tasks_of_ours_are_told_by_their_module(target: str, file: str) -> None:
    """They travel with the run; everything else is the user's."""
    assert Task(name="t", kind="module", target=target).shipped_file == file


SECRET = Secret("hunter2")


@pytest.mark.promise(7)
@pytest.mark.parametrize("show", [repr, str, "{}".format, "{!r}".format, "%s".__mod__, ascii])
def test_secret_prints_as_stars(show: Callable[[Secret], str]) -> None:
    """However it becomes text, a secret is `***`."""
    assert show(SECRET) == "***"


@pytest.mark.promise(7)
def test_secret_cannot_be_written_as_json() -> None:
    """What would record a secret fails instead."""
    spec = Spec(run_id="r", nodes=(Node("a", "a"),), secrets={"KEY": SECRET})
    with pytest.raises(TypeError, match="Secret is not JSON serializable"):
        json.dumps(encode(spec))
