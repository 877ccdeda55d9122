"""Rank tracker: exit causes of ranks, from real lines of the kernel's log."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from runner.host.ranks import tracker

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
