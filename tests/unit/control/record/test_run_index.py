"""Where the record of a run is found, from any folder of this machine, and by which words."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runner.control.record import run_index
from runner.control.record.run_store import RunStore
from runner.core.errors import ConfigError
from runner.core.launch_request import SweepPlace
from runner.core.wire.run_info import RunInfo
from tests.golden.builders import plan, request


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user stands in a project's folder, and has run nothing before."""
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    return tmp_path / "project"


def record(folder: Path, run_id: str, **fields: Any) -> Path:
    store = RunStore(folder)
    asked = replace(request(folder, run_id=run_id), **{"launched_at": 5.0, **fields})
    store.create(asked, replace(plan(1), run_id=run_id))
    store.unlock()
    return folder


def test_another_run_of_the_same_id_has_another_record(project: Path) -> None:
    """Another user may have chosen that id; what is pulled of it goes into a folder of its own."""
    mine, theirs = RunInfo("base", launched_at=5.0), RunInfo("base", launched_at=7.25)
    kept = record(project / "runs" / "base", "base")
    assert run_index.place_of(mine, project / "runs") == kept
    assert run_index.launch_of(theirs) is None
    apart = run_index.place_of(theirs, project / "runs")
    assert apart == project / "runs" / "base-7"
    store = RunStore(apart)
    assert store.reopen(replace(request(apart), launched_at=7.25), replace(plan(1), run_id="base"))
    store.unlock()
    assert run_index.place_of(theirs, project / "runs") == apart
    assert run_index.record_folder("base") == kept
    new = RunInfo("new", launched_at=1.0)
    assert run_index.place_of(new, project / "runs") == project / "runs" / "new"


def test_unfinished_runs_are_found_wherever_their_records_are(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those launched from this folder, and what was pulled into it; nobody else's.

    One whose end a host has not proven may be on there: `stop --run latest` has to find it.
    """
    here = str(project)
    pulled = record(project / "runs" / "pulled", "pulled")
    first = record(tmp_path / "data" / "one", "first", launched_from=here)
    second = record(tmp_path / "data" / "two", "second", launched_from=here)
    ended = record(project / "runs" / "ended", "ended", launched_from=here)
    (ended / "result.json").write_text('{"unverified": []}')
    lost = record(project / "runs" / "lost", "lost", launched_from=here)
    (lost / "result.json").write_text('{"unverified": ["b"]}')
    damaged = record(project / "runs" / "damaged", "damaged", launched_from=here)
    (damaged / "plan.json").write_text("[]")
    monkeypatch.chdir(tmp_path)
    record(tmp_path / "data" / "three", "third", launched_from=str(tmp_path))
    monkeypatch.chdir(project)
    for age, folder in enumerate((second, first, pulled, lost)):
        os.utime(folder / "config.yaml", (1000 - age, 1000 - age))
    assert list(run_index.unfinished()) == [second, first, pulled, lost]
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "none"))  # an index that was not written
    assert list(run_index.unfinished()) == [second, first, pulled, lost]


SWEEP = "0101-1200-sweep-abcd"
RUNS = ("0101-1200-train-aaaa", "0101-1200-train-bbbb")


def test_the_id_of_a_sweep_means_its_runs(project: Path) -> None:
    """As its folder does; a word that means none is refused."""
    runs = project / "runs"
    folders = [
        record(runs / run_id, run_id, sweep=SweepPlace(SWEEP, number, 2, ()))
        for number, run_id in enumerate(RUNS, start=1)
    ]
    sweep = RunStore(runs / SWEEP)
    sweep.make()
    sweep.write_json("sweep.json", {"sweep": SWEEP, "runs": [{"run_id": each} for each in RUNS]})
    for word in (SWEEP, f"runs/{SWEEP}"):
        assert run_index.named_records([word]) == folders
    assert run_index.named_records([RUNS[0]]) == folders[:1]
    for word, told in (("0101-z", "0101-z is not on record"), ("~nobody/x", "x.* is no folder")):
        with pytest.raises(ConfigError, match=told):
            run_index.named_records([word])
