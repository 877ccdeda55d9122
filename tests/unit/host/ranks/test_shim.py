"""The rank shim: what it reads of a container's memory, and what its supervisor makes of it."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from runner.host.ranks import shim
from runner.host.ranks.tracker import container_kill_reason

V1, V2 = ("memory/memory.oom_control", "memory/memory.limit_in_bytes"), shim.MEMORY_FILES[0]


@pytest.mark.parametrize(
    ("files", "events", "limit", "expected"),
    [
        (V1, "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n", "67108864\n", (2, 64 << 20)),
        (V1, "oom_kill_disable 0\noom_kill 1\n", "9223372036854771712\n", (1, 0)),
        (V2, "low 0\nmax 9\noom 1\noom_kill 1\n", "67108864\n", (1, 64 << 20)),
        (V2, "low 0\noom 1\noom_kill 1\n", "max\n", (0, 0)),
    ],
    ids=["version 1", "no limit", "version 2", "no limit in version 2"],
)
def test_kills_for_memory_and_the_limit(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    files: tuple[str, str],
    events: str,
    limit: str,
    expected: tuple[int, int],
) -> None:
    """As the cgroup of a container has them; nothing where there is none."""
    monkeypatch.setattr(shim, "CGROUP", str(tmp_path))
    assert shim.memory_kills() == (0, 0)
    for name, text in zip(files, (events, limit), strict=True):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert shim.memory_kills() == expected


def test_the_limit_is_the_reason_only_where_the_kernel_killed() -> None:
    """Not where a rank was killed or failed for another reason, or by a shim from before."""
    killed = {"signal": signal.SIGKILL, "code": None, "oom_kills": 1, "memory_limit": 64 << 20}
    text = "the memory limit of its container (67.1 MB) was reached"
    assert container_kill_reason(killed) == f"was killed by the kernel: {text}"
    failed = {**killed, "signal": None, "code": 3}
    expected = f"exited with 3 after the kernel had killed a process: {text}"
    assert container_kill_reason(failed) == expected
    for other in ({**killed, "oom_kills": 0}, {**killed, "memory_limit": 0}, {"signal": 9}):
        assert container_kill_reason(other) == ""
