"""Which of the code kept for a folder's runs may be removed."""

from __future__ import annotations

import json
import os
import shutil
import time
from dataclasses import replace
from pathlib import Path

import pytest

from runner.control.code.code_store import STORE, CodeStore
from runner.control.code.snapshot import Snapshot
from runner.control.record.run_store import RunStore
from runner.core.errors import NotReady
from runner.core.spec import Deploy
from runner.verbs.clean import prune_code
from tests.golden.builders import plan, request, spec

CONFIG = "cluster: {project: null}\ntask: {script: train.py}\n"
PUSHED = spec(deploy=Deploy(enabled=True))
DAY_S = 86400.0


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of code, from which nothing was launched so far."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "project" / "runs").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "project")
    return tmp_path / "project"


def launch(project: Path, folder: Path, run_id: str, *, has_ended: bool = True) -> str:
    (project / "train.py").write_text(f"print({run_id!r})")
    taken = Snapshot.take(PUSHED, project)
    CodeStore(project / "runs" / STORE).add(taken)
    store = RunStore(folder)
    store.reserve()
    asked = request(folder, CONFIG, run_id=run_id)
    store.create(replace(asked, launched_from=str(project)))
    release = taken.code.release
    store.write_plan(replace(plan(1), run_id=run_id, release=release, script="train.py"))
    store.unlock()
    if has_ended:
        (folder / "result.json").write_text("{}")
    two_days_ago = time.time() - 2 * DAY_S
    for file in (folder / "plan.json", *(project / "runs" / STORE).rglob("*")):
        os.utime(file, (two_days_ago, two_days_ago))
    return release


def test_what_a_run_may_need_stays(project: Path, tmp_path: Path) -> None:
    """Wherever its record is; that of a run that may be on, however old it is."""
    here = launch(project, project / "runs" / "here", "here")
    elsewhere = launch(project, tmp_path / "data" / "one", "elsewhere")
    launch(project, tmp_path / "data" / "two", "running", has_ended=False)
    gone = launch(project, project / "runs" / "gone", "gone")
    shutil.rmtree(project / "runs" / "gone")
    assert prune_code(project / "runs", None, dry_run=True).releases == (gone,)
    pruned = prune_code(project / "runs", DAY_S, dry_run=False)
    assert pruned.releases == tuple(sorted((here, elsewhere, gone)))
    assert pruned.runs == ("elsewhere", "here")


def test_a_plan_that_cannot_be_read_keeps_all(project: Path) -> None:
    """Nobody knows which code it names: the run is."""
    launch(project, project / "runs" / "here", "here")
    damaged = project / "runs" / "here" / "plan.json"
    damaged.write_text("{")
    with pytest.raises(NotReady, match=str(damaged)):
        prune_code(project / "runs", 0.0, dry_run=False)
    damaged.write_text(json.dumps({"run_id": 3}))
    with pytest.raises(NotReady, match="RecordedRelease.run_id"):
        prune_code(project / "runs", 0.0, dry_run=False)
