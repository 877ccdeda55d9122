"""Runs of a host, as `ps` and `latest` see them."""

from __future__ import annotations

from pathlib import Path

from runner.core.wire.paths import RunPaths
from runner.host.storage.run_list import read_run


def test_the_folder_of_a_pasted_dry_run_is_no_run(tmp_path: Path) -> None:
    """It has the ranks' working folder and no record: `latest` must not choose it."""
    folder = RunPaths(str(tmp_path), "0102-0304-env-abcd", "gpu1")
    Path(folder.work).mkdir(parents=True)
    assert read_run(folder) is None

    Path(folder.order).write_text("damaged")
    status = read_run(folder)
    assert status is not None
    assert status.state is None
