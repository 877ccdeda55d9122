"""The rank spawner, as a process of its own that starts tiny programs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from runner.host.ranks import spawner

NODE = {"WORLD_SIZE": "8", "NODE_RANK": "1", "NNODES": "2", "SLURM_CPUS_PER_TASK": "9"}


def spawn(count: int, script: str) -> subprocess.Popen[str]:
    """Start ranks from 4 on."""
    words = [sys.executable, "-I", "-S", spawner.__file__, str(count), "4", "/bin/sh", "-c", script]
    return subprocess.Popen(words, env={**os.environ, **NODE}, stdout=subprocess.PIPE, text=True)


def test_ranks_have_the_environment_of_srun() -> None:
    """Their own numbers, those of torchrun's names and of Slurm's; the node's cores are shared."""
    names = ["RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "SLURM_PROCID", "SLURM_LOCALID"]
    names += ["SLURM_NODEID", "SLURM_NTASKS", "SLURM_NTASKS_PER_NODE", "SLURM_TASKS_PER_NODE"]
    names += ["SLURM_CPUS_PER_TASK"]
    told = spawn(2, "echo " + " ".join(f"${name}" for name in names)).communicate()[0]
    assert sorted(told.splitlines()) == ["4 0 2 4 0 1 8 2 2(x2) 4", "5 1 2 5 1 1 8 2 2(x2) 4"]


def test_it_waits_for_all_and_fails_with_one() -> None:
    """Also if another one is told to end, and does so well; a signal reaches all."""
    script = """trap 'echo told; exit $LOCAL_RANK' HUP
        echo up; while :; do sleep 0.01; done"""
    process = spawn(2, script)
    assert process.stdout is not None
    assert [process.stdout.readline() for _ in range(2)] == ["up\n"] * 2
    process.send_signal(signal.SIGHUP)
    assert process.communicate()[0] == "told\n" * 2
    assert process.returncode == 1
