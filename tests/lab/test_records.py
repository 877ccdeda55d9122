"""Records that were cut off, damaged, or made by an earlier version: still listed, read, ended."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from runner.core.model.order import Order
from runner.core.protocol.events import Ended
from runner.core.protocol.paths import RunPaths
from runner.core.protocol.states import State
from runner.host.agent.follow import FollowedRun
from runner.host.storage.run_folder import EventLog, final_state, read_events
from runner.host.storage.run_list import read_run
from runner.host.storage.run_lock import RunLock
from tests.lab.launching import Launcher
from tests.lab.supervising import RunStarter

OLD = Path(__file__).parents[1] / "fixtures" / "format_1"
OLD_RUN = "0101-0101-old-beef"


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A workdir with a run of format 1."""
    workdir = tmp_path / "workdir"
    shutil.copytree(OLD, workdir / "runs")
    for path in workdir.rglob("order.json"):
        path.write_text(path.read_text().replace("@WORKDIR@", str(workdir)))
    return workdir


def test_a_run_of_format_1_is_listed_read_and_cleaned(launcher: Launcher, old: Path) -> None:
    """By every verb that a run of today knows."""

    def say(*words: str) -> str:
        done = launcher(*words, f"cluster.workdir={old}")
        assert done.code == 0, done
        return done.out + done.err

    (row,) = json.loads(say("ps", "--all", "--json").splitlines()[0])["runs"]
    assert (row["run_id"], row["state"], row["ended"]) == (OLD_RUN, "succeeded", True)
    assert "[local:1] hello from rank 1" in say("logs")
    assert f"run {OLD_RUN} succeeded" in say("attach")
    assert "0 processes" in say("stop", "--run", OLD_RUN)
    assert "pulled" in say("pull")
    assert (launcher.folder / "runs" / OLD_RUN / "logs/local/rank_0.out").exists()
    assert "1 run" in say("clean", "--older-than", "0s")
    assert not (old / "runs" / OLD_RUN).exists()


def test_a_supervisor_of_format_1_is_spoken_to_in_its_words(old: Path) -> None:
    """A byte each: what we say today would read as something else."""
    folder = RunPaths(str(old), OLD_RUN, "local")
    order = Order(OLD_RUN, "local", 0, str(old), (), {}, "/", (0, 1), "", "")
    doorway = RunLock(OLD_RUN, "local")
    doorway.make_folder()
    listener = doorway.listen()
    followed = FollowedRun(folder, order)
    listener.setblocking(True)
    supervisor, _ = listener.accept()
    for word in ("renew_lease", "detach", "stop", "kill"):
        followed.send_command(word, cause="user", reason="stopped by skipper")
    assert supervisor.recv(4096) == b"hsk"
    for each in (supervisor, listener):
        each.close()
    followed.close()
    doorway.remove_files()


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
    path = Path(run.folder.events)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-1]) + lines[-1][:20])
    assert final_state(run.folder) is None
    Path(run.folder.state).write_text('{"state": "stopping"}')
    journal = EventLog(run.folder, run.order)
    journal.finalise(Ended(State.FAILED, "a power cut"))
    assert final_state(run.folder) is State.FAILED
    assert [event.seq for event in read_events(run.folder)] == list(range(1, len(lines) + 1))
