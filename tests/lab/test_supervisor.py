"""The supervisor, its guardian, the rank shim and their records on this machine, without torch."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from runner.core.wire.events import (
    Ended,
    ProgramExited,
    ProgramStarted,
    RankExited,
    RankStarted,
    Stopping,
)
from runner.core.wire.paths import RunPaths
from runner.core.wire.states import State
from runner.host.storage import run_folder, run_owner
from runner.host.storage.run_folder import EventLog, read_events, read_state
from runner.host.storage.run_list import read_run
from tests.golden.builders import own
from tests.lab.supervising import RunStarter

pytestmark = [pytest.mark.promise(2)]


def test_ranks_run_and_their_files_have_global_names(start: RunStarter) -> None:
    """Output goes to one file per rank and stream; the record says who ended how.

    Nothing of it can be read by others.
    """
    run = start("print=hello", "err=oops", "env=HIDDEN", "cat")
    assert run.wait_ended().state is State.SUCCEEDED
    attempt = Path(run.folder.attempt_folder(0))
    for rank in (0, 1):
        out = (attempt / f"rank_{rank}.out").read_text()
        assert out == "hello\nHIDDEN=None\nstdin: ''\n"
        assert (attempt / f"rank_{rank}.err").read_text() == "oops\n"
    assert {(body.rank, body.code) for body in run.bodies(RankExited)} == {(0, 0), (1, 0)}
    run.until(lambda: read_state(run.folder) is State.SUCCEEDED)
    assert run.processes() == []
    for path in [Path(run.folder.root), *Path(run.folder.root).rglob("*")]:
        assert path.stat().st_mode & 0o077 == 0, path


def test_a_stop_that_comes_too_early_is_not_lost(start: RunStarter) -> None:
    """It is said again once the supervisor listens: ranks are asked to end, and not killed."""
    run = start("sleep=600", grace_s=600, start_as="stopped")
    ended = run.wait_ended()
    assert (ended.state, ended.killed) == (State.STOPPED, 0)
    assert run.bodies(Stopping)[0].reason.text == "told early"


def test_what_serves_a_rank_is_told_when_that_has_ended(start: RunStarter, tmp_path: Path) -> None:
    """Not before, and not only when all ranks have ended."""
    saves = ("rank=0:saves=0.2", "rank=1:deaf", f"helper={tmp_path}/heard_RANK", "print=up")
    run = start(
        *saves, f"rank=1:wait={tmp_path}/heard_0", "rank=1:exit=0", "sleep=600", grace_s=600
    )
    out = [Path(run.folder.stream_log(0, f"rank_{rank}", "out")) for rank in (0, 1)]
    run.until(lambda: all(path.exists() and path.read_text() == "up\n" for path in out))
    run.send_command("stop")
    run.wait_ended()
    assert out[0].read_text() == "up\nsaving\nsaved\nheard\n"


def test_what_serves_a_deaf_rank_is_told_before_the_kill(start: RunStarter, tmp_path: Path) -> None:
    run = start("deaf", f"helper={tmp_path}/heard", "print=up", "sleep=600", ranks=1)
    out = Path(run.folder.stream_log(0, "rank_0", "out"))
    run.until(lambda: out.exists() and out.read_text() == "up\n")
    run.send_command("stop")
    ended = run.wait_ended()
    assert (ended.state, ended.survivors, ended.verified) == (State.STOPPED, (), True)
    assert out.read_text() == "up\nheard\n"


def test_a_killed_shim_ends_the_run_at_once(start: RunStarter, tmp_path: Path) -> None:
    """Its launcher waits for ranks that are deaf to its TERM; the supervisor does not."""
    run = start("deaf", f"touch={tmp_path}/RANK.deaf", "sleep=600", grace_s=0.5)
    run.wait_started()
    run.until(lambda: len(list(tmp_path.glob("*.deaf"))) == len(run.order.ranks))
    (shim,) = (b["shim"] for b in _start_records(run.folder) if b["rank"] == 1)
    os.kill(shim, signal.SIGKILL)
    assert run.wait_ended().state is State.FAILED
    assert run.bodies(Stopping)[0].reason.text == "rank 1 on here ended unseen"
    codes = {body.rank: (body.code, body.signal) for body in run.bodies(RankExited)}
    assert codes[1] == (None, None)  # nobody saw how it ended, and the record says just that
    assert run.processes() == []


def _start_records(folder: RunPaths) -> list[dict[str, Any]]:
    records = run_folder.read_rank_records(folder.attempt_folder(0), set())
    return [{**data, "rank": rank} for kind, rank, data in records if kind == "start"]


def test_the_supervisor_ends_the_run_when_its_guardian_dies(start: RunStarter) -> None:
    """No half of the pair works alone."""
    run = start("daemon", "deaf", "sleep=600", grace_s=0.5)
    run.wait_started()
    stat = Path(f"/proc/{run.supervisor()}/stat").read_text()
    os.kill(int(stat.rpartition(")")[2].split()[1]), signal.SIGKILL)
    assert run.wait_ended().state is State.STOPPED
    assert run.processes() == []


def test_a_killed_program_takes_its_ranks_with_it(start: RunStarter) -> None:
    """SIGKILL of torchrun leaves no rank; the ranks' ends count as its consequence."""
    run = start("deaf", "sleep=600", grace_s=0.3)
    run.wait_started()
    (program,) = run.bodies(ProgramStarted)
    os.kill(program.pid, signal.SIGKILL)
    assert run.wait_ended().state is State.FAILED
    assert run.bodies(ProgramExited) == [ProgramExited(signal=9)]
    assert run.processes() == []


def test_a_missing_rank_program_exits_127(start: RunStarter) -> None:
    """As a shell would say it, and in the rank's own error file; it was never started."""
    run = start(ranks=1, program=("/no/such/interpreter",))
    run.wait_ended()
    assert ([b.code for b in run.bodies(RankExited)], run.bodies(RankStarted)) == ([127], [])
    assert (
        "/no/such/interpreter: No such file"
        in (Path(run.folder.attempt_folder(0)) / "rank_0.err").read_text()
    )


@pytest.mark.promise(5)
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
    for path in (cut.order, cut.info):
        text = Path(path).read_bytes() if Path(path).exists() else b""
        for damaged in (b"", text[: len(text) // 2], b"\0" * len(text), b"[]", b"\xff"):
            Path(path).write_bytes(damaged)
            seen = read_run(cut)
            assert seen is not None
            assert seen.info.run_id == run.order.run_id
        Path(path).unlink()
        assert read_run(cut) is not None


@pytest.mark.promise(5)
def test_a_journal_goes_on_after_a_torn_line(start: RunStarter) -> None:
    """Whoever closes the record begins a line of their own."""
    run = start("print=x", ranks=1)
    run.wait_ended()
    run.until(lambda: not run_owner.is_alive(run.folder), 20)  # its guardian reads the record, too
    path = Path(run.folder.events)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-1]) + lines[-1][:20])
    assert read_state(run.folder) is State.RUNNING
    journal = EventLog(run.folder, run.order)
    journal.finalise(Ended(State.FAILED, own(run.order.node, "a power cut")))
    assert read_state(run.folder) is State.FAILED
    assert [event.seq for event in read_events(run.folder)] == list(range(1, len(lines) + 1))
