"""Damaged records: a run that was cut off is still listed and read."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from runner.core.protocol.events import Ended
from runner.core.protocol.paths import RunPaths
from runner.core.protocol.states import State
from runner.host.storage import run_owner
from runner.host.storage.run_folder import EventLog, final_state, read_events
from runner.host.storage.run_list import read_run
from tests.lab.supervising import RunStarter

pytestmark = [pytest.mark.promise(5)]


def test_a_power_cut_at_any_byte_leaves_a_readable_record(
    start: RunStarter, tmp_path: Path
) -> None:
    """Every beginning of every file: what was whole before is there, the rest is left out."""
    run = start("print=x", ranks=2)
    run.wait_ended()
    whole = read_events(run.folder)
    cut = RunPaths(str(tmp_path / "cut"), run.order.run_id, run.order.node)
    shutil.copytree(run.folder.root, cut.root)
    content = Path(run.folder.events).read_bytes()
    for size in range(0, len(content), 7):
        Path(cut.events).write_bytes(content[:size])
        events = read_events(cut)
        assert events == whole[: len(events)]
        assert len(events) in (content[:size].count(b"\n"), content[:size].count(b"\n") + 1)
    for path in (cut.state, cut.order, cut.info, cut.format):
        text = Path(path).read_bytes() if Path(path).exists() else b""
        for damaged in (b"", text[: len(text) // 2], b"\0" * len(text), b"[]", b"\xff"):
            Path(path).write_bytes(damaged)
            seen = read_run(cut)
            assert seen is not None
            assert seen.info.run_id == run.order.run_id
        Path(path).unlink()
        assert read_run(cut) is not None


def test_a_journal_goes_on_after_a_torn_line(start: RunStarter) -> None:
    """Whoever closes the record begins a line of their own."""
    run = start("print=x", ranks=1)
    run.wait_ended()
    run.until(lambda: not run_owner.is_alive(run.folder), 20)  # its guardian reads the record, too
    path = Path(run.folder.events)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-1]) + lines[-1][:20])
    assert final_state(run.folder) is None
    Path(run.folder.state).write_text('{"state": "stopping"}')
    journal = EventLog(run.folder, run.order)
    journal.reopen()
    journal.finalise(Ended(State.FAILED, "a power cut"))
    assert final_state(run.folder) is State.FAILED
    assert [event.seq for event in read_events(run.folder)] == list(range(1, len(lines) + 1))
