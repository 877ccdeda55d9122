"""Facts of a failed rank."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from runner.core.codec import decode
from runner.core.protocol.events import RankFacts
from runner.host.ranks import rank_facts


def test_disks_are_looked_at_where_the_log_names_one(tmp_path: Path) -> None:
    """Those of the usual folders, and of paths in the program's arguments that need not exist."""
    log = tmp_path / "rank_0.err"
    program = ["python", f"--out={tmp_path}/new/x.pt"]
    for text, folders in (("ValueError: x", set()), ("[Errno 28] x", {"/dev/shm", str(tmp_path)})):
        log.write_text(text)
        facts = decode(RankFacts, rank_facts.rank_facts(str(log), program))
        assert facts.disks.keys() >= folders
        assert bool(facts.disks) == bool(folders)
        assert facts.path == os.environ["PATH"]
        assert facts.uid == os.getuid()
        assert facts.limits.keys() == {"nofile", "nproc"}


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
    facts = rank_facts.rank_facts(str(log), [])
    released.set()
    assert "/dev/shm" in facts["disks"]
    assert str(tmp_path) not in facts["disks"]
