"""Supervisor with a disk that answers late, in a process of its own."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from runner.core.wire.events import Ended, EventBody, ProgramExited, Stopping
from runner.core.wire.order import Order, Program
from runner.core.wire.paths import RunPaths
from runner.core.wire.states import State
from runner.host.facts import ports
from runner.host.process import subreaper
from runner.host.process.bounded_child import BoundedChild
from runner.host.process.event_loop import EventLoop
from runner.host.process.jobs import FileWorker, Handler, Work
from runner.host.storage import run_folder
from runner.host.storage.run_owner import RunSocket
from runner.host.supervisor import supervisor as supervisor_module
from runner.host.supervisor.attempt import SupervisorArgs
from runner.host.supervisor.stall_monitor import StallMonitor
from runner.host.supervisor.supervisor import Supervisor
from tests.golden.builders import own
from tests.lab.waiting import PATIENCE

Script = Callable[[Supervisor], bool]
"""What happens in every turn of a supervisor's loop; returns whether its disk hangs from then."""

USER_STOP = b'{"command": "stop", "reason": {"kind": "user", "detail": "told to"}}\n'


DEADLINE_S = 20


class Disk:
    hangs = False


class SlowFiles(FileWorker):
    """Does no work while the disk hangs."""

    def submit(self, work: Work, then: Handler = id) -> None:
        """Queue work."""

        def wait_and_do() -> Any:
            while Disk.hangs:
                time.sleep(0.005)
            return work()

        super().submit(wait_and_do, then)

    def close(self) -> None:
        """End the thread that has started the programs: the kernel ends them with it."""
        assert any(thread.name == "files" for thread in threading.enumerate())
        assert subreaper.no_children_left()
        print("closed", file=sys.stderr)
        super().close()


SHIM = "import os, sys; os.execv(sys.argv[4], sys.argv[4:])"


class Supervised:
    """A program under a supervisor that has ended, with its record."""

    def __init__(
        self,
        workdir: Path,
        command: str,
        script: Script,
        no_file: str = "",
        **changes: Any,
    ) -> None:
        node = str(os.getpid())
        folder = RunPaths(str(workdir), workdir.name, node)
        program = Program(words=("/bin/sh", "-c", command))
        changes = {"grace_s": 20.0, **changes}
        self.order = Order(workdir.name, node, 0, str(workdir), folder.work, program, **changes)
        programs = {"shim": SHIM, "rank_facts": "", "sitecustomize": ""}
        run_folder.create_run_folder(folder, self.order, programs, {})
        if no_file:
            Path(vars(folder)[no_file]).mkdir()
        problem = workdir / "problem"
        child = os.fork()
        if child == 0:
            signal.alarm(int(DEADLINE_S * PATIENCE))
            try:
                self._supervise(folder, script)
            except BaseException:  # noqa: BLE001 (the test shows it)
                problem.write_text(traceback.format_exc())
                os._exit(1)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        assert status == 0, problem.read_text() if problem.exists() else status
        self.events = run_folder.read_events(folder)
        self.state = run_folder.read_state(folder, self.order)

    def event(self, kind: type[EventBody]) -> Any:
        """The event of a kind, of which there is one."""
        (event,) = (event for event in self.events if isinstance(event.body, kind))
        return event

    def _supervise(self, folder: RunPaths, script: Script) -> None:
        class Loop(EventLoop):
            def wait(self, seconds: float) -> None:
                super().wait(seconds)
                Disk.hangs = script(supervisor)

        vars(supervisor_module).update(FileWorker=SlowFiles, EventLoop=Loop)
        listener = RunSocket(folder).take()
        assert listener is not None
        args = SupervisorArgs(folder, self.order, dict(os.environ), ports.NO_PORTS, b"")
        supervisor = Supervisor(args, os.getppid())
        supervisor.run(listener, on_ready=lambda: None)


def _stop_as_user(supervisor: Supervisor) -> None:
    connection = RunSocket(supervisor._args.folder).connect()
    assert connection is not None
    with connection:
        connection.send(USER_STOP)


def test_a_stop_after_the_end_changes_nothing(tmp_path: Path) -> None:
    """The disk has not taken the end yet."""
    turns = 0

    def script(supervisor: Supervisor) -> bool:
        nonlocal turns
        if not supervisor._journal.state.is_terminal:
            return False
        turns += 1
        if turns == 1:
            _stop_as_user(supervisor)
        return turns < 4

    run = Supervised(tmp_path, "exit 0", script)
    assert run.state is State.SUCCEEDED
    assert run.events[-1].body == Ended(State.SUCCEEDED)
    assert not any(isinstance(event.body, Stopping) for event in run.events)


@pytest.mark.promise(2)
def test_the_thread_that_started_the_programs_outlives_them(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The kernel ends them with that thread (PR_SET_PDEATHSIG), not with the process."""
    stopped = False
    is_deaf = tmp_path / "is_deaf"

    def script(supervisor: Supervisor) -> bool:
        nonlocal stopped
        if supervisor._journal.state is State.RUNNING and is_deaf.exists() and not stopped:
            stopped = True
            _stop_as_user(supervisor)
        return False

    deaf = f"trap '' TERM; sleep 600 & sleep 600 & : >{is_deaf}; wait"
    run = Supervised(tmp_path, deaf, script, grace_s=0.2)
    assert run.state is State.STOPPED
    assert run.events[-1].body == Ended(State.STOPPED, killed=3)
    assert capfd.readouterr().err == "closed\n"


def test_a_failure_before_the_stop_is_one_however_late_it_is_read(tmp_path: Path) -> None:
    """The program ended by itself, and the stop came while the disk did not answer."""
    stopped = False

    def script(supervisor: Supervisor) -> bool:
        nonlocal stopped
        if supervisor._launcher.exit_status is not None and not stopped:
            stopped = True
            _stop_as_user(supervisor)
        return stopped and not supervisor._ladder.is_stopping

    run = Supervised(tmp_path, "exit 7", script)
    assert run.state is State.FAILED
    assert run.event(ProgramExited).mono < run.event(Stopping).mono


@pytest.mark.promise(2)
def test_nothing_starts_before_its_owner_is_on_record(tmp_path: Path) -> None:
    """What finds no owner on record proves by that that nothing was started."""
    node = str(os.getpid())
    run = Supervised(tmp_path, "exit 7", lambda _: False, no_file="owner_file")
    reason = own(node, "cannot write its record: Is a directory")
    assert [event.body for event in run.events] == [Stopping(reason), Ended(State.STOPPED, reason)]


def test_a_helper_that_the_loop_reaped_tells_how_it_ended(tmp_path: Path) -> None:
    """Also where it is to be killed: its number may be another's by then."""
    helpers: list[BoundedChild] = []
    told = tmp_path / "told"

    def script(supervisor: Supervisor) -> bool:
        if helpers:
            seen, killed = helpers
            seen.advance()
            killed.kill()
            told.write_text(f"{seen.code} {killed.code}")
        elif supervisor._launcher.is_running:
            for signum in (signal.SIGKILL, signal.SIGTERM):
                helpers.append(BoundedChild(partial(signal.raise_signal, signum), 60.0))
                os.waitid(os.P_PID, helpers[-1].pid, os.WEXITED | os.WNOWAIT)
        return False

    Supervised(tmp_path, f"until [ -e {told} ]; do sleep 0.01; done", script)
    assert told.read_text() == "-9 -15"


@pytest.mark.promise(2)
def test_a_helper_does_not_stand_for_what_no_scan_has_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel's list of our children proves that nothing is left but the helper."""
    helpers: list[BoundedChild] = []
    pids = property(lambda _: frozenset(each.pid for each in helpers if each.code is None))
    monkeypatch.setattr(StallMonitor, "child_pids", pids)

    def script(supervisor: Supervisor) -> bool:
        if not helpers:
            vars(supervisor)["_live_processes"] = list
            helpers.append(BoundedChild(partial(time.sleep, 60), 60.0))
        elif supervisor._journal.state.is_terminal:
            helpers[0].kill()
        return False

    run = Supervised(tmp_path, "setsid sleep 600 &", script)
    assert run.events[-1].body == Ended(State.SUCCEEDED, killed=1)
