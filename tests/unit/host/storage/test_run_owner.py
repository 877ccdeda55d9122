"""Owners of runs: this machine, an earlier boot of it, or another one on the same disk."""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from runner.core.codec import encode
from runner.core.model.plan import Order
from runner.core.protocol.events import Ended, ProgramStarted
from runner.core.protocol.frames import Frame
from runner.core.protocol.paths import RunPaths
from runner.core.protocol.states import State
from runner.host.agent.clean import Handler
from runner.host.agent.server import AgentContext
from runner.host.storage import run_folder, run_owner
from runner.host.storage.run_folder import EventLog
from runner.host.storage.run_list import read_run
from runner.host.storage.run_owner import RunLock, RunOwner

PROGRAMS = {"shim": "#", "sitecustomize": "#"}


class Host:
    """A work folder with a run, and a link that looks after it."""

    def __init__(self, workdir: Path) -> None:
        self.workdir = str(workdir)
        self.order = Order("r1", "n1", 0, self.workdir, ("x",), {}, "/", (0,), "", "")
        self.folder = RunPaths(self.workdir, "r1", "n1")
        self.told: list[dict[str, object]] = []
        wire = AgentContext(lambda _, data, __=b"": self.told.append(data), lambda: True, repr)
        wire.followed_workdir = self.workdir
        self.keeping = Handler(wire)

    def begin(self) -> None:
        """Have the run begin."""
        run_folder.create_run_folder(self.folder, self.order, PROGRAMS, {})
        run_owner.record(self.folder, [os.getpid()])
        journal = EventLog(self.folder, self.order)
        journal.append(ProgramStarted(1))
        journal.set_state(State.RUNNING)

    def kept_by(self, **changes: object) -> RunOwner:
        """Have somebody else keep it."""
        known = run_owner.read(self.folder)
        assert known is not None
        other = replace(known, **changes)  # type: ignore[arg-type]
        Path(self.folder.owner_file).write_text(json.dumps(encode(other)))
        return other

    def prove(self) -> dict[str, object]:
        """Look for what is left of it."""
        self.keeping.on_kill_leftovers(
            Frame("kill_leftovers", {"id": 1, "run_id": "r1", "node": "n1"})
        )
        return self.told.pop()


@pytest.fixture
def host(tmp_path: Path) -> Host:
    """A new one."""
    return Host(tmp_path)


def test_a_machine_stays_the_same_under_another_name(host: Host) -> None:
    """Of the same boot and the same processes; in another boot its name and its id decide."""
    host.begin()
    assert host.kept_by(hostname="renamed").other_host == ""
    assert run_owner.live_owner_pids(host.folder) == [os.getpid()]
    assert host.kept_by(hostname="renamed", boot_id="another").other_host == "renamed"
    assert host.kept_by(hostname=os.uname().nodename, boot_id="another").other_host == ""
    assert run_owner.live_owner_pids(host.folder) == []


def test_containers_share_all_but_their_processes(host: Host) -> None:
    """Of one boot and machine: the name tells, or a sign of life; else it was restarted."""
    host.begin()
    assert host.kept_by(hostname="other", pid_namespace="pid:[1]").other_host == "other"
    host.kept_by(hostname=os.uname().nodename, pid_namespace="pid:[1]")
    assert run_owner.other_host(host.folder) == f"another container of {os.uname().nodename}"
    assert run_owner.live_owner_pids(host.folder) == []
    long_ago = time.time() - run_owner.CONTAINER_TIMEOUT_S - 1
    os.utime(host.folder.owner_file, (long_ago, long_ago))
    assert run_owner.other_host(host.folder) == ""


def test_who_was_gone_when_it_was_noted_is_nobody(host: Host) -> None:
    """Not whoever else is gone by now."""
    host.begin()
    host.kept_by(start_ticks={"999999999": -1})
    assert run_owner.live_owner_pids(host.folder) == []


def test_a_run_of_another_machine_is_not_ours_to_prove(host: Host) -> None:
    """Nothing is found of it here, and that says nothing."""
    host.begin()
    host.kept_by(hostname="oldbox", boot_id="another")
    with pytest.raises(ValueError, match="run r1 is on oldbox, and this is "):
        host.prove()
    seen = read_run(host.folder)
    assert seen is not None
    assert seen.alive
    long_ago = time.time() - run_owner.OWNER_TIMEOUT_S - 60
    os.utime(host.folder.owner_file, (long_ago, long_ago))
    seen = read_run(host.folder)
    assert seen is not None
    assert not seen.alive
    with pytest.raises(ValueError, match=r"oldbox \(its last heartbeat is 6\d\d s old\)"):
        host.prove()
    journal = EventLog(host.folder, host.order)
    journal.set_state(State.STOPPING)
    journal.finalise(Ended(State.STOPPED))
    assert host.prove()["survivors"] == []


def test_a_run_that_never_began_here_has_left_nothing(host: Host) -> None:
    """Its folder was taken, or its order never arrived whole."""
    assert run_folder.reserve_attempt(host.folder, 0)
    assert not run_folder.reserve_attempt(host.folder, 0)
    assert host.prove() == {"id": 1, "killed": 0, "survivors": []}
    Path(host.folder.order).write_text("")
    assert host.prove()["survivors"] == []


def test_an_attempt_can_be_claimed(host: Host) -> None:
    """So that its order, should it arrive late, finds its place taken."""
    host.begin()
    assert run_folder.reserve_attempt(host.folder, 1)
    with pytest.raises(FileExistsError):
        run_folder.create_run_folder(host.folder, replace(host.order, attempt=1), PROGRAMS, {})


def test_names_of_runs_lead_nowhere_else(host: Host) -> None:
    """Whatever somebody asks for."""
    for name in ("../r1", "/etc", "", "r1/../r1"):
        frame = Frame("kill_leftovers", {"id": 1, "run_id": name, "node": "n1"})
        with pytest.raises(ValueError, match="is no run"):
            host.keeping.on_kill_leftovers(frame)


RUN = RunPaths("/w", "run", "a")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A /tmp of its own."""
    monkeypatch.setattr(run_owner, "BASE_DIR", str(tmp_path))
    return tmp_path


def taken(place: Path, name: str) -> None:
    """Have somebody else's folder there: one that is not private is as good as that."""
    (place / name).mkdir()
    (place / name).chmod(0o755)


def test_a_folder_of_somebody_elses_is_left_alone(place: Path) -> None:
    """The next name is taken, by all who look for the run, also once the other folder is gone."""
    taken(place, "runner-7")
    mine = RunLock(RUN, 7)
    assert not RunLock(RUN, 7).is_held
    (place / "runner-7-a").symlink_to(place)
    assert RunLock(RUN, 7).socket_path.startswith(f"{place}/runner-7-b/")
    (place / "runner-7-a").unlink()
    assert mine.lock_path.startswith(f"{place}/runner-7-a/")


def test_all_of_a_run_meet_in_one_folder(place: Path) -> None:
    """Whatever is made or removed beside it later."""
    taken(place, f"runner-{os.getuid()}")
    lock = RunLock(RUN).acquire()
    assert lock is not None
    assert [each.name for each in place.iterdir() if each.stat().st_mode & 0o777 == 0o700] == [
        f"runner-{os.getuid()}-a"
    ]
    assert RunLock(RUN).is_held
    (place / f"runner-{os.getuid()}").rmdir()
    assert RunLock(RUN).is_held
    assert RunLock(RUN).try_lock() is None


def test_who_takes_all_names_is_named(place: Path) -> None:
    """Then nothing can be started here, and that is said."""
    for name in run_owner.FOLDER_NAMES:
        taken(place, name.format(os.getuid()))
    with pytest.raises(PermissionError, match="is not a private folder of ours"):
        RunLock(RUN).acquire()
