"""What a launch says before it begins."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from runner.control.code.source import CodeOnHosts
from runner.control.run.attempts import launch_notes
from runner.core.spec import Task
from tests.golden.builders import request


@pytest.mark.parametrize(("entry", "is_told"), [("plain", True), ("torchrun", False)])
def test_a_number_of_ranks_that_is_not_used_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, entry: str, *, is_told: bool
) -> None:
    """One rank starts where two were typed; a cluster's own number says nothing of this task."""
    monkeypatch.chdir(tmp_path)
    quiet = request(tmp_path, task=Task(module="train", entry=entry))
    cluster = replace(quiet.spec.cluster, nproc_per_node=2)
    quiet = replace(quiet, spec=replace(quiet.spec, cluster=cluster))
    asked = replace(quiet, overrides=("cluster.nproc_per_node=2",))
    notes = launch_notes(asked, CodeOnHosts(asked.spec))
    assert [note.partition(" is ")[0] for note in notes] == ["cluster.nproc_per_node=2"] * is_told
    assert launch_notes(quiet, CodeOnHosts(quiet.spec)) == []
