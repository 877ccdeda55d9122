"""Rank tracker: exit causes of ranks, from real lines of the kernel's log."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest

from runner.core.protocol.paths import RunPaths
from runner.host.process.file_worker import run_now
from runner.host.ranks import tracker
from runner.host.storage.run_folder import EventLog
from tests.golden.builders import plan

LOG = """\
6,760,1239866964,-;lan0: port 4(port2.0) entered blocking state
6,801,2500000000,-;oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0
3,802,2500000120,-;Memory cgroup out of memory: Killed process 4711 (python) total-vm:71888kB, \
anon-rss:40112kB, file-rss:6272kB, shmem-rss:0kB, UID:0 pgtables:136kB oom_score_adj:300
6,803,2700000000,-;lan0: port 4(port2.0) entered forwarding state
"""
SAID = (
    "was killed by the kernel: Memory cgroup out of memory: "
    "Killed process 4711 (python) total-vm:71888kB"
)


@pytest.mark.parametrize(
    ("pid", "mono", "said"),
    [
        (4711, 9.0, SAID),
        (12, 2500.3, SAID),
        (12, 2499.6, SAID),
        (12, 2600.0, ""),
    ],
    ids=["its pid", "its time", "a bit before", "another"],
)
def test_the_kernel_tells_whom_it_killed(tmp_path: Path, pid: int, mono: float, said: str) -> None:
    """By pid; or by time, where its pids are not those that we see."""
    log = tmp_path / "kmsg"
    log.write_text(LOG)
    assert (
        tracker.kernel_kill_reason(pid, {"signal": signal.SIGKILL, "mono": mono}, str(log)) == said
    )


def test_other_ends_are_not_the_kernels(tmp_path: Path) -> None:
    """And where its log may not be read, it says nothing."""
    log = tmp_path / "kmsg"
    log.write_text(LOG)
    assert (
        tracker.kernel_kill_reason(4711, {"signal": signal.SIGTERM, "mono": 2500.0}, str(log)) == ""
    )
    assert tracker.kernel_kill_reason(4711, {"signal": None, "mono": 2500.0}, str(log)) == ""
    assert (
        tracker.kernel_kill_reason(4711, {"signal": signal.SIGKILL, "mono": 2500.0}, str(tmp_path))
        == ""
    )


def test_a_stale_number_is_not_signalled(tmp_path: Path) -> None:
    """A shim that died without a word leaves a number that may be another process's by now."""
    order = replace(plan(1).node("a").order, workdir=str(tmp_path), run_id="run", grace_s=0.0)
    folder = RunPaths(str(tmp_path), "run", "a")
    attempt = Path(folder.attempt_folder(0))
    attempt.mkdir(parents=True)
    clocks = {"mono": time.monotonic(), "wall": time.time(), "nodes": 2, "world_size": 2}
    with subprocess.Popen(["sleep", "60"]) as stranger:
        for rank, shim in enumerate((1, 1 << 22)):
            record = {"pid": stranger.pid, "shim": shim, **clocks}
            (attempt / f"rank_{rank}.start").write_text(json.dumps(record))
        journal = EventLog(folder, order)
        ranks = tracker.RankTracker(folder, order, journal, lambda *_: None, run_now)
        ranks.tick(stopping=False)
        ranks.terminate_for_restart(1)
        ranks.tick(stopping=False)
        with pytest.raises(subprocess.TimeoutExpired):
            stranger.wait(0.2)
        stranger.kill()
