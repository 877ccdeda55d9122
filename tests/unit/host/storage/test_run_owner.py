"""Runs of a host and their owners: this machine, an earlier boot, another one on its disk."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from runner.core.wire.codec import Frame, encode
from runner.core.wire.events import Ended, ProgramStarted
from runner.core.wire.order import Order
from runner.core.wire.paths import RunPaths
from runner.core.wire.states import State
from runner.host.agent.runs import Handler
from runner.host.storage import run_folder, run_owner
from runner.host.storage.run_folder import EventLog, read_events
from runner.host.storage.run_list import read_run
from runner.host.storage.run_owner import RunOwner, RunSocket
from runner.host.supervisor.recovery import recover_unfinished
from tests.unit.release_builders import AgentInMemory

PROGRAMS = dict.fromkeys(("shim", "rank_facts", "sitecustomize"), "#")


class Host:
    """A work folder with a run, and a link that looks after it."""

    def __init__(self, workdir: Path) -> None:
        self.workdir = str(workdir)
        self.order = Order("r1", "n1", 0, self.workdir, "/")
        self.folder = RunPaths(self.workdir, "r1", "n1")
        self.told: list[dict[str, object]] = []
        agent = AgentInMemory(workdir, lambda _, data, __: self.told.append(data))
        self.keeping = Handler(agent)

    def begin(self) -> None:
        run_folder.create_run_folder(self.folder, self.order, PROGRAMS, {})
        run_owner.record(self.folder, [os.getpid()])
        journal = EventLog(self.folder, self.order)
        journal.append(ProgramStarted(1))

    def kept_by(self, **changes: object) -> RunOwner:
        """Have somebody else keep it."""
        known = run_owner.read(self.folder)
        assert known is not None
        other = replace(known, **changes)  # type: ignore[arg-type]
        Path(self.folder.owner_file).write_text(json.dumps(encode(other)))
        return other

    def ends(self) -> list[Ended]:
        bodies = [event.body for event in read_events(self.folder)]
        return [body for body in bodies if isinstance(body, Ended)]

    def seems_alive(self) -> bool:
        seen = read_run(self.folder)
        assert seen is not None
        return seen.alive

    def prove(self) -> dict[str, object]:
        frame = Frame("kill_leftovers", {"id": 1, "run_id": "r1", "node": "n1"})
        self.keeping.on_kill_leftovers(frame)
        return self.told.pop()


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_a_boot_or_a_name_tells_that_a_run_is_not_of_here(host: Host) -> None:
    """Of another machine nothing is signalled; a start time tells a process from another."""
    host.begin()
    assert run_owner.live_owner_pids(host.folder) == [os.getpid()]
    host.kept_by(hostname="renamed")
    assert run_owner.other_host(host.folder) == "renamed"
    assert run_owner.live_owner_pids(host.folder) == []
    with pytest.raises(ValueError, match="run r1 is on renamed, and this is "):
        run_owner.require_local(host.folder)
    taken = RunSocket(host.folder).take()
    assert taken is not None
    with taken:  # a machine with a new name: its kernel knows the run
        run_owner.require_local(host.folder)
    host.kept_by(hostname=os.uname().nodename, start_ticks={str(os.getpid()): 1})
    assert run_owner.other_host(host.folder) == ""
    assert run_owner.live_owner_pids(host.folder) == []


@pytest.mark.promise(2)
def test_nothing_of_a_run_outlives_a_boot(host: Host) -> None:
    """Its end is proven by that."""
    verified = []
    for changes in ({}, {"boot_id": "another"}):
        host.begin()
        host.kept_by(start_ticks={}, **changes)
        recover_unfinished(host.folder)
        verified += [end.verified for end in host.ends()]
        shutil.rmtree(host.folder.root)
    assert verified == [False, True]


def test_a_start_that_was_cut_off_before_its_owner_was_on_record_has_left_nothing(
    host: Host,
) -> None:
    """No program can have begun; nor where its order never arrived."""
    assert run_folder.reserve_attempt(host.folder, 0)
    assert not run_folder.reserve_attempt(host.folder, 0)
    assert host.prove() == {"id": 1, "killed": 0, "survivors": []}
    shutil.rmtree(host.folder.root)
    run_folder.create_run_folder(host.folder, host.order, PROGRAMS, {})
    assert host.prove()["survivors"] == []
    (end,) = host.ends()
    assert (end.verified, end.reason and end.reason.words) == (True, "its start was cut off")


def test_a_run_of_another_machine_is_not_ours_to_prove(host: Host) -> None:
    """Nothing is found of it here, and that says nothing."""
    host.begin()
    host.kept_by(hostname="oldbox", boot_id="another")
    with pytest.raises(ValueError, match="run r1 is on oldbox, and this is "):
        host.prove()
    assert host.seems_alive()
    long_ago = time.time() - run_owner.OWNER_TIMEOUT_S - 60
    os.utime(host.folder.owner_file, (long_ago, long_ago))
    assert not host.seems_alive()
    with pytest.raises(ValueError, match=r"oldbox \(its last heartbeat is 6\d\d s old\)"):
        host.prove()
    journal = EventLog(host.folder, host.order)
    journal.finalise(Ended(State.STOPPED))
    assert host.prove()["survivors"] == []


def test_names_of_runs_lead_nowhere_else(host: Host) -> None:
    """Whatever somebody asks for."""
    for name in ("../r1", "/etc", "", "r1/../r1"):
        frame = Frame("kill_leftovers", {"id": 1, "run_id": name, "node": "n1"})
        with pytest.raises(ValueError, match="is no run"):
            host.keeping.on_kill_leftovers(frame)


@pytest.fixture
def run(tmp_path: Path) -> RunPaths:
    return RunPaths(str(tmp_path), "r1", "n1")


def test_whoever_holds_the_socket_lives(run: RunPaths) -> None:
    """Nobody else can take it; its end frees the name, also that of the process."""
    for _ in range(2):
        taken = RunSocket(run).take()
        assert taken is not None
        with taken:
            assert run_owner.is_alive(run)
            assert RunSocket(run).take() is None
        assert not run_owner.is_alive(run)


def test_lookers_do_not_see_each_other(run: RunPaths) -> None:
    """However many look at a run without a supervisor at once, it is dead to all of them."""
    with ThreadPoolExecutor(8) as pool:
        seen = list(pool.map(lambda _: run_owner.is_alive(run), range(400)))
    assert not any(seen)


@pytest.mark.promise(2, 12)
def test_a_full_backlog_is_no_sign_of_death(host: Host) -> None:
    """A supervisor that waits for its disk accepts nobody for a while.

    The kernel does not say whose it is: without that supervisor, a stranger keeps no run alive.
    """
    host.begin()
    run = host.folder
    taken = RunSocket(run).take()
    assert taken is not None
    with taken, contextlib.ExitStack() as waiting:
        taken.listen(1)
        while (connection := RunSocket(run).connect()) is not None:
            waiting.enter_context(connection)
        assert RunSocket(run).take() is None
        assert RunSocket(run).is_held
        assert run_owner.take_over(run) is None
        host.kept_by(start_ticks={})
        assert not host.seems_alive()
        host.prove()
    assert len(host.ends()) == 1


def test_a_stranger_who_took_the_name_keeps_no_run_from_being_ended(
    run: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not taken for a supervisor of this user; a start is refused, with the reason."""
    monkeypatch.setattr(run_owner, "peer_uid", lambda _: 4711)
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.bind(RunSocket(run).address)
        stranger.listen()
        assert not run_owner.is_alive(run)
        assert RunSocket(run).connect() is None
        with pytest.raises(PermissionError, match="another user holds the abstract socket runner-"):
            RunSocket(run).take()
        taken = run_owner.take_over(run)
        assert taken is not None
        taken.close()


def test_a_workdir_may_have_several_paths(run: RunPaths, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    address = RunSocket(run).address
    assert RunSocket(RunPaths(str(tmp_path / "link"), "r1", "n1")).address == address
    assert RunSocket(RunPaths(str(tmp_path / "x"), "r1", "n1")).address != address


def test_a_run_in_another_network_namespace_is_not_taken_over(host: Host) -> None:
    """Its socket cannot be seen from here, but its processes can."""
    host.begin()
    assert not RunSocket(host.folder).is_held
    assert run_owner.is_alive(host.folder)
    assert run_owner.take_over(host.folder) is None


@pytest.mark.promise(12)
@pytest.mark.parametrize("name", ["stop_marker", "events"])
def test_a_record_is_never_written_where_a_link_leads(
    host: Host, tmp_path: Path, name: str
) -> None:
    """Whoever could make a link in a run's folder would have us overwrite a file of ours."""
    precious = tmp_path / "precious"
    precious.write_text("kept")
    host.begin()
    path = Path(getattr(host.folder, name))
    path.unlink(missing_ok=True)
    path.symlink_to(precious)
    before = precious.stat().st_mtime
    host.prove()
    assert (precious.read_text(), precious.stat().st_mtime) == ("kept", before)


def test_the_folder_of_a_pasted_dry_run_is_no_run(tmp_path: Path) -> None:
    """It has the ranks' working folder and no record: `latest` must not choose it."""
    folder = RunPaths(str(tmp_path), "0102-0304-env-abcd", "gpu1")
    Path(folder.work).mkdir(parents=True)
    assert read_run(folder) is None

    Path(folder.order).write_text("damaged")
    status = read_run(folder)
    assert status is not None
    assert status.state is None
