"""Facts of a failed rank."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from runner.host.ranks.rank_facts import rank_facts

ALWAYS = {"path", "uid", "nofile", "nproc"}


def test_disks_are_looked_at_where_the_log_names_one(tmp_path: Path) -> None:
    """Those of the usual folders, and of paths in the program's arguments that need not exist."""
    log = tmp_path / "rank_0.err"
    log.write_text("ValueError: x")
    facts = rank_facts(str(log), [])
    assert facts.keys() == ALWAYS
    assert facts["path"] == os.environ["PATH"]
    log.write_text("OSError: [Errno 28] No space left on device")
    facts = rank_facts(str(log), ["python", "--out=/proc/none/x.pt"])
    assert facts.keys() >= {*ALWAYS, "shm", "left"}
    assert "/proc 0 of 0 MiB" in facts["left"]


def test_a_file_system_that_hangs_holds_nobody_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was found before it is told."""
    released = threading.Event()
    statvfs = os.statvfs

    def hang(path: str) -> os.statvfs_result:
        if path == str(tmp_path):
            released.wait()
        return statvfs(path)

    monkeypatch.setattr(os, "statvfs", hang)
    log = tmp_path / "rank_0.err"
    log.write_text("No space left on device")
    facts = rank_facts(str(log), [])
    released.set()
    assert "/dev/shm" in facts["left"]
    assert str(tmp_path) not in facts["left"]
