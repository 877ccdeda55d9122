"""The rank spawner, as a process of its own that starts tiny programs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from runner.host.ranks import spawner

FILE = spawner.__file__
SLURMS = {"SLURM_NNODES": "2", "SLURM_CPUS_PER_TASK": "9"}
TELL = """\
import json, os, sys
names = [n for n in os.environ if n.startswith("SLURM_") or n.split("_")[-1] in ("RANK", "SIZE")]
told = {"env": {name: os.environ[name] for name in names}, "group": os.getpgid(0)}
line = json.dumps({**told, "pid": os.getpid(), "args": sys.argv[1:]})
os.write(1, line.encode() + b"\n")  # in one piece: ranks share the pipe
"""
Spawn = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def spawn() -> Iterator[Spawn]:
    """Starts so many ranks of a program; what is left in the end is killed."""
    made: list[subprocess.Popen[str]] = []

    def start(
        count: int, *program: str, script: str = FILE, **environ: str
    ) -> subprocess.Popen[str]:
        words = [sys.executable, "-I", "-S", script, str(count), "4", *program]
        env = {**os.environ, "WORLD_SIZE": "8", "NODE_RANK": "1", **SLURMS, **environ}
        made.append(subprocess.Popen(words, env=env, stdout=subprocess.PIPE, text=True))
        return made[-1]

    yield start
    for process in made:
        process.kill()  # the ranks die with it
        with process:
            pass


def shell(count: int, script: str) -> tuple[int | str, ...]:
    """The words for ranks that run a script."""
    return (count, "/bin/sh", "-c", script)


def test_ranks_have_the_environment_of_srun(spawn: Spawn) -> None:
    """Their own numbers, those of torchrun's names and of Slurm's; a group for each."""
    lines = spawn(2, sys.executable, "-c", TELL, "--lr", "0.1").communicate()[0].splitlines()
    told = sorted((json.loads(line) for line in lines), key=lambda each: each["env"]["RANK"])
    for local_rank, rank in enumerate(told):
        assert rank["env"] == {
            "SLURM_CPUS_PER_TASK": "4",
            "RANK": str(4 + local_rank),
            "LOCAL_RANK": str(local_rank),
            "NODE_RANK": "1",
            "WORLD_SIZE": "8",
            "LOCAL_WORLD_SIZE": "2",
            "SLURM_PROCID": str(4 + local_rank),
            "SLURM_LOCALID": str(local_rank),
            "SLURM_NTASKS": "8",
            "SLURM_NPROCS": "8",
            "SLURM_NTASKS_PER_NODE": "2",
            "SLURM_NODEID": "1",
            "SLURM_NNODES": "2",
            "SLURM_STEP_NUM_TASKS": "8",
            "SLURM_TASKS_PER_NODE": "2(x2)",
            "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
        }
        assert rank["group"] == rank["pid"]
        assert rank["args"] == ["--lr", "0.1"]


def test_it_waits_for_all_and_ends_as_the_first_that_failed(spawn: Spawn) -> None:
    """Whoever started it ends the others; by then they have ended by themselves."""
    script = "case $LOCAL_RANK in 0) sleep 0.1; echo last; exit 5;; 1) exit 7;; esac"
    process = spawn(*shell(3, script))
    assert process.communicate()[0] == "last\n"
    assert process.returncode == 7


@pytest.mark.parametrize(
    ("script", "code"), [("exit 0", 0), ("kill -9 $$", 137), ("kill -TERM $$", 143)]
)
def test_the_code_of_a_killed_rank(spawn: Spawn, script: str, code: int) -> None:
    """As a shell has it."""
    assert spawn(*shell(1, script)).wait() == code


def test_a_program_that_is_not_there(spawn: Spawn) -> None:
    """As a shell has it, too."""
    assert spawn(1, "/nowhere/python").wait() == 127


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_reaches_the_groups_of_all_ranks(spawn: Spawn, signum: int) -> None:
    """Also what they have started; those that survive it are waited for."""
    wait = "sleep 5 >/dev/null & wait"
    child = f'trap "echo child; exit 0" TERM HUP; echo up; {wait}'
    script = f'trap "echo told; exit 0" TERM HUP; ({child}) & echo up; wait'
    process = spawn(*shell(2, script))
    assert process.stdout is not None
    assert [process.stdout.readline() for _ in range(4)] == ["up\n"] * 4
    process.send_signal(signum)
    lines = process.communicate()[0].split()
    assert (sorted(lines), process.returncode) == (["child", "child", "told", "told"], 0)


def test_ctrl_c_reaches_ranks(spawn: Spawn) -> None:
    """They are in no group of the terminal."""
    process = spawn(*shell(2, "echo up; exec sleep 5"))
    assert process.stdout is not None
    assert [process.stdout.readline() for _ in range(2)] == ["up\n"] * 2
    process.send_signal(signal.SIGINT)
    assert process.wait() == 130


def test_ranks_die_with_it(spawn: Spawn) -> None:
    """A KILL cannot be passed on."""
    process = spawn(*shell(1, "echo $$; exec sleep 60"))
    assert process.stdout is not None
    pid = int(process.stdout.readline())
    process.kill()
    process.wait()
    deadline = time.monotonic() + 10
    while Path(f"/proc/{pid}/stat").exists() and time.monotonic() < deadline:
        if Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z":
            break
        time.sleep(0.005)
    else:
        assert not Path(f"/proc/{pid}").exists()


def test_a_signal_before_a_rank_has_its_group(spawn: Spawn, tmp_path: Path) -> None:
    """On a busy machine a rank begins late: it is told all the same."""
    slow = (
        "import os, runpy, sys, time\n"
        "setpgid = os.setpgid\n"
        "def late(pid, group):\n"
        "    if not pid:\n"
        "        print('up', flush=True)\n"
        "        time.sleep(0.1)\n"
        "    setpgid(pid, group)\n"
        "os.setpgid = late\n"
        f"runpy.run_path({FILE!r}, run_name='__main__')\n"
    )
    script = tmp_path / "slow.py"
    script.write_text(slow)
    process = spawn(*shell(1, "exec sleep 5"), script=str(script))
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    process.terminate()
    began = time.monotonic()
    assert process.wait() == 143
    assert time.monotonic() - began < 3
