"""The rank shim and the rank spawner, as processes of their own; the memory of a container."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from runner.host.ranks import shim, spawner
from runner.host.ranks.tracker import container_kill_reason
from tests.lab.waiting import wait_until

V1, V2 = ("memory/memory.oom_control", "memory/memory.limit_in_bytes"), shim.MEMORY_FILES[0]


@pytest.mark.parametrize(
    ("files", "events", "limit", "expected"),
    [
        (V1, "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n", "67108864\n", (2, 64 << 20)),
        (V2, "low 0\nmax 9\noom 1\noom_kill 1\n", "67108864\n", (1, 64 << 20)),
    ],
    ids=["version 1", "version 2"],
)
def test_kills_for_memory_and_the_limit(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    files: tuple[str, str],
    events: str,
    limit: str,
    expected: tuple[int, int],
) -> None:
    """As the cgroup of a container has them."""
    monkeypatch.setattr(shim, "CGROUP", str(tmp_path))
    for name, text in zip(files, (events, limit), strict=True):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert shim.memory_kills() == expected


def test_the_limit_is_the_reason_only_where_the_kernel_killed() -> None:
    """Not where a rank was killed or failed for another reason, or by a shim from before."""
    killed = {"signal": signal.SIGKILL, "code": None, "oom_kills": 1, "memory_limit": 64 << 20}
    failed = {**killed, "signal": None, "code": 3}
    for each in (killed, failed):
        assert "the memory limit of its container (67.1 MB)" in container_kill_reason(each)
    for other in ({**killed, "oom_kills": 0}, {**killed, "memory_limit": 0}, {"signal": 9}):
        assert container_kill_reason(other) == ""


HEEDS = """\
trap 'echo term' TERM
trap 'echo limit' XCPU
trap 'exit 3' INT
(trap 'echo child' TERM; echo up; while kill -0 $$ 2>/dev/null; do sleep 0.01; done) &
while :; do sleep 0.01; done
"""


@pytest.fixture
def heeding(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The shim of a rank with a child; each says what it hears."""
    words = [sys.executable, "-I", "-S", shim.__file__, str(tmp_path), "", ""]
    env = {**os.environ, "RANK": "0"}
    with subprocess.Popen(
        [*words, "/bin/sh", "-c", HEEDS], env=env, start_new_session=True
    ) as made:
        yield made
        made.kill()


def test_a_rank_alone_gets_what_its_parent_sends_and_term_once(
    tmp_path: Path, heeding: subprocess.Popen[bytes]
) -> None:
    """Not its children, whoever signals the group of the shim, and not what others send."""

    def until(text: str) -> None:
        out = tmp_path / "rank_0.out"
        wait_until(lambda: out.exists() and out.read_text() == text, text)

    until("up\n")
    subprocess.run(["/bin/sh", "-c", f"kill -TERM {heeding.pid}"], check=True)
    heeding.send_signal(signal.SIGXCPU)
    until("up\nlimit\n")
    os.killpg(heeding.pid, signal.SIGTERM)
    until("up\nlimit\nterm\n")
    os.killpg(heeding.pid, signal.SIGTERM)
    heeding.send_signal(signal.SIGXCPU)
    until("up\nlimit\nterm\nlimit\n")
    heeding.send_signal(signal.SIGINT)
    assert heeding.wait() == 3


RANK = """\
trap 'echo told; exit $LOCAL_RANK' HUP
echo $RANK $SLURM_NODEID $SLURM_NPROCS $SLURM_TASKS_PER_NODE $SLURM_CPUS_PER_TASK
while :; do sleep 0.01; done
"""


def test_ranks_are_those_of_srun_and_fail_with_one() -> None:
    """The node's cores are shared; a signal reaches all, and one that ends well helps nobody."""
    node = {"WORLD_SIZE": "8", "NODE_RANK": "1", "NNODES": "2", "SLURM_CPUS_PER_TASK": "9"}
    words = [sys.executable, "-I", "-S", spawner.__file__, "2", "4", "/bin/sh", "-c", RANK]
    env = {**os.environ, **node}
    process = subprocess.Popen(words, env=env, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    said = sorted(process.stdout.readline() for _ in range(2))
    assert said == ["4 1 8 2(x2) 4\n", "5 1 8 2(x2) 4\n"]
    process.send_signal(signal.SIGHUP)
    assert process.communicate()[0] == "told\n" * 2
    assert process.returncode == 1
