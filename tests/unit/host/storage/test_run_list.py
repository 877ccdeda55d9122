"""Runs of a host, as `ps` and `latest` see them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from runner.core.protocol.paths import RunPaths
from runner.host.storage import run_owner
from runner.host.storage.run_folder import mark_unattended
from runner.host.storage.run_list import host_folders, read_run


def test_the_folder_of_a_pasted_dry_run_is_no_run(tmp_path: Path) -> None:
    """It has the ranks' working folder and no record: `latest` must not choose it."""
    folder = RunPaths(str(tmp_path), "0102-0304-env-abcd", "gpu1")
    Path(folder.work).mkdir(parents=True)
    assert read_run(folder) is None

    Path(folder.format).write_text("1\n")
    status = read_run(folder)
    assert status is not None
    assert status.state is None


def test_a_run_without_a_controller_says_how_long_it_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until one is back, and not once it has ended."""
    folder = RunPaths(str(tmp_path), "r1", "gpu1")
    Path(folder.root).mkdir(parents=True)
    Path(folder.format).write_text("1\n")
    monkeypatch.setattr(run_owner, "is_alive", lambda *_: True)

    def left_s() -> float | None:
        status = read_run(folder)
        assert status is not None
        return status.unattended_left_s

    mark_unattended(folder, None)
    assert left_s() is None
    mark_unattended(folder, 500.0)
    assert 0 < (left_s() or 0) <= 500
    monkeypatch.setattr(run_owner, "is_alive", lambda *_: False)
    assert left_s() is None


@pytest.fixture
def folder_of(tmp_path: Path) -> Callable[..., str]:
    """Makes the folder of a node, of this machine, of another one, or of none on record."""

    def make(node: str, machine: str | None = "") -> str:
        folder = RunPaths(str(tmp_path), "r1", node)
        Path(folder.root).mkdir(parents=True)
        if machine is not None:
            run_owner.record(folder, [])
        if machine:
            owner = json.loads(Path(folder.owner_file).read_text())
            owner.update(hostname=machine, boot_id=machine)
            Path(folder.owner_file).write_text(json.dumps(owner))
        return node

    return make


def found(workdir: Path, node: str, *others: str) -> list[str]:
    """The nodes of the run whose folders the host answers for that is called `node` now."""
    folders = host_folders(str(workdir), "r1", node, others)
    return [Path(folder.root).name for folder in folders]


def test_a_renamed_host_knows_its_folder(tmp_path: Path, folder_of: Callable[..., str]) -> None:
    """By the machine on record; also where another host of the disk has its name now."""
    folder_of("a"), folder_of("b", "box-b")
    assert found(tmp_path, "a", "b") == ["a"]
    assert found(tmp_path, "new", "b") == ["a"]
    assert found(tmp_path, "b", "a") == ["b", "a"]


def test_hosts_on_one_disk_answer_for_their_own(
    tmp_path: Path, folder_of: Callable[..., str]
) -> None:
    """One that takes no part in a run has no folder of it, and one without a record is by name."""
    folder_of("b", "box-b"), folder_of("c", None)
    assert found(tmp_path, "a", "b", "c") == []
    assert found(tmp_path, "c", "b") == ["c"]
    assert found(tmp_path, "b") == ["b"]  # its host may have been renamed since
