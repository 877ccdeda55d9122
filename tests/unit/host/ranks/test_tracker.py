"""Rank tracker: exit causes of ranks, from the kernel's log and from facts of a failed one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from runner.core.wire.events import RankExited
from runner.core.wire.paths import RunPaths
from runner.host.process.jobs import Handler, Work
from runner.host.process.pid_namespace import INITIAL
from runner.host.ranks import tracker
from runner.host.ranks.rank_facts import rank_facts
from runner.host.storage.run_folder import EventLog, read_events
from tests.golden.builders import plan

LOG = """\
6,760,1239866964,-;lan0: port 4(port2.0) entered blocking state
6,801,2500000000,-;oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0
3,802,2500000120,-;Memory cgroup out of memory: Killed process 4711 (python) total-vm:71888kB, \
anon-rss:40112kB, file-rss:6272kB, shmem-rss:0kB, UID:0 pgtables:136kB oom_score_adj:300
6,803,2700000000,-;lan0: port 4(port2.0) entered forwarding state
"""
TRACEBACK = """\
Traceback (most recent call last):
  File "train.py", line 1, in <module>
ValueError: bad lr
"""
SAID = (
    "was killed by the kernel: Memory cgroup out of memory: "
    "Killed process 4711 (python) total-vm:71888kB"
)


class Host:
    """A tracker whose disk answers when it is told to, and what it reports."""

    def __init__(self, workdir: Path) -> None:
        order = replace(plan(1).node("a").order, workdir=str(workdir), run_id="run", grace_s=0.0)
        folder = RunPaths(str(workdir), "run", "a")
        self.attempt = Path(folder.attempt_folder(0))
        self.attempt.mkdir(parents=True)
        self.stopped_at = float("inf")
        self._folder, self._jobs = folder, list[tuple[Work, Handler]]()
        self.ranks = tracker.RankTracker(
            folder,
            order,
            EventLog(folder, order),
            lambda *_: None,
            lambda job, then=id: self._jobs.append((job, then)),
            lambda: self.stopped_at,
        )

    def record(self, name: str, **data: object) -> None:
        (self.attempt / name).write_text(json.dumps(data))

    def record_end(self, at: float) -> None:
        """Have rank 0 fail at a time of the monotonic clock; it says why."""
        (self.attempt / "rank_0.err").write_text(TRACEBACK)
        times = {"mono": at, "wall": time.time() - 2}
        self.record("rank_0.start", pid=1, shim=1, parent=1, nodes=1, world_size=1, **times)
        self.record("rank_0.exit", code=1, signal=None, **times)

    def answer(self) -> None:
        while self._jobs:
            job, then = self._jobs.pop(0)
            then(job())

    def exits(self) -> list[RankExited]:
        return [body for _, body in self.timed_exits()]

    def timed_exits(self) -> list[tuple[float, RankExited]]:
        """The exits on record, each with when it was (monotonic)."""
        events = read_events(self._folder)
        return [(each.mono, each.body) for each in events if isinstance(each.body, RankExited)]


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


@pytest.mark.parametrize(
    ("namespace", "pid", "mono", "said"),
    [
        (INITIAL, 4711, 2530.0, SAID),
        (INITIAL, 4711, 9000.0, ""),
        (INITIAL, 12, 2499.6, ""),
        (7, 12, 2499.6, SAID),
        (7, 12, 2600.0, ""),
    ],
)
def test_the_kernel_tells_whom_it_killed(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    namespace: int,
    pid: int,
    mono: float,
    said: str,
) -> None:
    """By pid, unless that had another process then; by time where its pids are not those we see."""
    monkeypatch.setattr(tracker, "namespace_of", lambda: namespace)
    log = tmp_path / "kmsg"
    log.write_text(LOG)
    assert (
        tracker.kernel_kill_reason(pid, {"signal": signal.SIGKILL, "mono": mono}, str(log)) == said
    )


def test_a_stale_number_is_not_signalled(host: Host) -> None:
    """A shim that died without a word leaves a number that may be another process's by now."""
    clocks = {"mono": time.monotonic(), "wall": time.time(), "nodes": 2, "world_size": 2}
    with subprocess.Popen(["sleep", "60"]) as stranger:
        for rank, shim in enumerate((1, 1 << 22)):
            record = {"pid": stranger.pid, "shim": shim, "parent": shim, **clocks}
            host.record(f"rank_{rank}.start", **record)
        host.ranks.tick()
        host.answer()
        host.ranks.terminate_for_restart(1, time.monotonic())
        host.ranks.tick()
        stranger.send_signal(signal.SIGUSR1)
        assert stranger.wait() == -signal.SIGUSR1  # the first signal that it got


@pytest.mark.parametrize("stopped_after_s", [1.0, -1.0], ids=["before the stop", "after it"])
def test_the_time_of_a_failure_decides_whether_it_was_one(
    host: Host, monkeypatch: pytest.MonkeyPatch, stopped_after_s: float
) -> None:
    """Not the time at which a slow disk tells it."""
    monkeypatch.setattr(tracker, "kernel_kill_reason", lambda *_: SAID)
    ended_at = time.monotonic() - 2
    host.record_end(ended_at)
    host.ranks.tick()
    host.stopped_at = ended_at + stopped_after_s
    host.answer()
    failed = stopped_after_s > 0
    assert [bool(body.error) for body in host.exits()] == [failed]


def test_an_exception_has_the_time_at_which_it_was_written(host: Host) -> None:
    """The end of its rank may come much later."""
    host.record_end(time.monotonic())
    for name, written_at in ("rank_0.err", 1000.0), ("rank_0.exit", 1007.5):
        os.utime(host.attempt / name, (written_at, written_at))
    host.ranks.tick()
    host.answer()
    (exited,) = host.exits()
    assert (exited.exception, exited.raised_s) == ("ValueError: bad lr", 7.5)


FULL = "No space left in /"


@pytest.mark.parametrize("problem", [FULL, ""])
def test_a_rank_that_could_not_record_its_end_was_gone_before_its_launcher(
    host: Host, monkeypatch: pytest.MonkeyPatch, problem: str
) -> None:
    """Else the launcher's exit would be the first failure; with no reason nobody knows."""
    monkeypatch.setattr(tracker, "disk_problem", lambda _: problem)
    times = {"mono": time.monotonic() - 2, "wall": time.time() - 2}
    host.record("rank_0.start", pid=1, shim=1, parent=1, nodes=1, world_size=1, **times)
    launcher_ended_at = time.monotonic() - 1
    host.ranks.scan_records(lambda: host.ranks.record_vanished(launcher_ended_at))
    host.answer()
    host.answer()
    ((_, exited),) = host.timed_exits()
    assert exited.error == (problem and f"ended, and could not record how: {FULL}")
    assert (host.timed_exits()[0][0] <= launcher_ended_at) == bool(problem)


def test_a_file_system_that_hangs_holds_nobody_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was found before it is told; of a log that names no disk, none is looked at."""
    released = threading.Event()
    statvfs = os.statvfs

    def hang(path: str) -> os.statvfs_result:
        if path == str(tmp_path):
            released.wait()
        return statvfs(path)

    monkeypatch.setattr(os, "statvfs", hang)
    log = tmp_path / "rank_0.err"
    log.write_text("ValueError: x")
    assert "left" not in rank_facts(str(log), [])
    log.write_text("No space left on device")
    facts = rank_facts(str(log), [])
    released.set()
    assert "/dev/shm" in facts["left"]
    assert str(tmp_path) not in facts["left"]
