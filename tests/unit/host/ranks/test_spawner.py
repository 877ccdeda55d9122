"""The rank spawner, as a process of its own that starts tiny programs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from runner.host.process import procfs
from runner.host.ranks import spawner
from tests.lab.waiting import wait_until

FILE = spawner.__file__
SLURMS = {"SLURM_NNODES": "2", "SLURM_CPUS_PER_TASK": "9"}
TELL = """\
import json, os, sys
names = [n for n in os.environ if n.startswith("SLURM_") or n.split("_")[-1] in ("RANK", "SIZE")]
told = {"env": {name: os.environ[name] for name in names}, "args": sys.argv[1:]}
line = json.dumps(told)
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
    return (count, "/bin/sh", "-c", script)


def test_ranks_have_the_environment_of_srun(spawn: Spawn) -> None:
    """Their own numbers, those of torchrun's names and of Slurm's."""
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
        assert rank["args"] == ["--lr", "0.1"]


def test_it_waits_for_all_and_ends_as_the_first_that_failed(spawn: Spawn, tmp_path: Path) -> None:
    """Whoever started it ends the others; by then they have ended by themselves."""
    pid = tmp_path / "pid"
    script = f"""case $LOCAL_RANK in
        0) until [ -e {pid} ]; do sleep 0.01; done
           while kill -0 $(cat {pid}); do sleep 0.01; done
           echo last; exit 5;;
        1) echo $$ >{pid}.new; mv {pid}.new {pid}; exit 7;;
    esac 2>/dev/null"""
    process = spawn(*shell(3, script))
    assert process.communicate()[0] == "last\n"
    assert process.returncode == 7


def test_a_signal_reaches_all_ranks(spawn: Spawn) -> None:
    """Those that survive it are waited for."""
    script = 'trap "echo told; exit 0" TERM HUP; echo up; sleep 600 >/dev/null & wait'
    process = spawn(*shell(2, script))
    assert process.stdout is not None
    assert [process.stdout.readline() for _ in range(2)] == ["up\n"] * 2
    process.send_signal(signal.SIGHUP)
    lines = process.communicate()[0].split()
    assert (lines, process.returncode) == (["told", "told"], 0)


def test_ranks_die_with_it(spawn: Spawn) -> None:
    """A KILL cannot be passed on."""
    process = spawn(*shell(1, "echo $$; exec sleep 60"))
    assert process.stdout is not None
    pid = int(process.stdout.readline())
    process.kill()
    process.wait()
    wait_until(lambda: not procfs.is_running(pid), "the end of the rank")
