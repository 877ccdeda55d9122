"""Words that name runs on record: beginnings of ids, of runs and of sweeps."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from runner.control.record.run_index import named_records
from runner.control.record.run_store import RunStore
from runner.core.errors import ConfigError
from runner.core.launch_request import SweepPlace
from tests.golden.builders import request

SWEEP = "0101-1200-sweep-abcd"
RUNS = ("0101-1200-train-aaaa", "0101-1200-train-bbbb")


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The records of the runs of a sweep."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for number, run_id in enumerate(RUNS, start=1):
        store = RunStore(tmp_path / "runs" / run_id)
        store.reserve()
        place = SweepPlace(SWEEP, number, 2, ())
        store.create(replace(request(store.folder, "{}\n"), sweep=place, launched_at=1.7e9))
    sweep = RunStore(tmp_path / "runs" / SWEEP)
    sweep.reserve()
    sweep.write_json("sweep.json", {"sweep": SWEEP, "runs": [{"run_id": each} for each in RUNS]})
    return [tmp_path / "runs" / run_id for run_id in RUNS]


def test_the_beginning_of_a_sweeps_id_means_its_runs(folders: list[Path]) -> None:
    """As that of a run means the run; one that several share, or none has, is refused."""
    for word in (SWEEP, SWEEP[:-1], SWEEP[:11]):
        assert named_records([word]) == folders
    assert named_records([RUNS[0][:-1]]) == folders[:1]
    with pytest.raises(ConfigError, match="0101-1200-train-bbbb"):
        named_records(["0101-1200"])
    with pytest.raises(ConfigError, match="0101-1200-train-zzzz"):
        named_records(["0101-1200-train-zzzz"])
    with pytest.raises(ConfigError, match="nobody-here/x.* is no folder"):
        named_records(["~nobody-here/x"])
