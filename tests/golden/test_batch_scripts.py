"""Batch scripts of runs that Slurm starts."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Callable
from dataclasses import replace

import pytest
from runner.core.planning.batch_script import batch_script

from runner.core.spec import Node, SlurmSpec, Spec, Task
from tests.golden.builders import RUN_ID, SCRIPT, spec
from tests.golden.conftest import SCRIPTS

LOGIN = Node("login", "hpc.example")
SRUN = replace(SCRIPT, entry="srun")
EVERY_OPTION = SlurmSpec(
    nnodes=2,
    partition="gpu,long",
    account="acme",
    qos="high",
    time="1-12:00:00",
    constraint="a100&ib",
    nodelist="n[1-2]",
    exclude="n3,n[5-7]",
    reservation="a course",
    licenses="foo:4",
    cpus_per_rank=6,
    mem_per_rank="12G",
    extra=("--exclusive", "--mail-user=ada o'hara@example.com"),
)


def in_slurm(
    slurm: SlurmSpec, login: Node = LOGIN, task: Task = SCRIPT, min_nodes: int | None = None
) -> Spec:
    return spec(login, task=task, slurm=slurm, min_nodes=min_nodes)


CASES: dict[str, Spec] = {
    "plain": in_slurm(SlurmSpec()),
    "every-option": in_slurm(EVERY_OPTION, replace(LOGIN, gpus=8, nproc_per_node=4)),
    "requeue-after-signal": in_slurm(SlurmSpec(nnodes=4, requeue=True, signal_before=180)),
    "range-of-nodes": in_slurm(SlurmSpec(nnodes=5, spares=1), min_nodes=2),
    "entry-srun": in_slurm(SlurmSpec(nnodes=2, cpus_per_rank=4), replace(LOGIN, gpus=4), task=SRUN),
    "entry-plain": in_slurm(
        SlurmSpec(nnodes=2, cpus_per_rank=4, mem_per_rank="512M"),
        replace(LOGIN, gpus=4),
        task=replace(SCRIPT, entry="plain"),
    ),
}
every_case = pytest.mark.parametrize("name", CASES)


def script(name: str, workdir: str = "/home/ada/.runner") -> str:
    return batch_script(CASES[name], workdir, "python3 -I -X utf8 -c BOOT", "0f1e2d3c", "ab" * 32)


def options(name: str, workdir: str = "/home/ada/.runner") -> list[str]:
    lines = re.findall(r"^#SBATCH (.+)$", script(name, workdir), re.MULTILINE)
    words = [shlex.split(line) for line in lines]
    assert all(len(each) == 1 for each in words), lines
    return [each[0] for each in words]


@every_case
def test_script_is_as_recorded(name: str, check_script: Callable[[str, str], None]) -> None:
    """To the letter; options come first, since Slurm stops looking at the first command."""
    check_script(f"{name}.sh", script(name))
    lines = script(name).splitlines()
    last = max(at for at, line in enumerate(lines) if line.startswith("#SBATCH "))
    assert lines[0] == "#!/bin/bash"
    assert all(line.startswith("#SBATCH ") for line in lines[1 : last + 1])


def test_bash_takes_the_script() -> None:
    """Nothing in it is unfinished, also below a folder with a blank and quotes."""
    for name in CASES:
        text = script(name, """/data/a "b" o'c $HOME""").encode()
        checked = subprocess.run(["bash", "-n"], input=text, capture_output=True, check=False)
        assert (checked.returncode, checked.stderr) == (0, b""), name


def test_no_golden_script_outlives_its_case() -> None:
    """Each belongs to one."""
    assert {path.name for path in SCRIPTS.iterdir()} == {f"{name}.sh" for name in CASES}


def test_words_of_a_user_stay_words() -> None:
    """Whatever is in them; the log is in the folder of the run, wherever that is."""
    assert options("every-option")[-2:] == ["--exclusive", "--mail-user=ada o'hara@example.com"]
    assert "--reservation=a course" in options("every-option")
    log = f"/data/a b/runs/{RUN_ID}/.slurm/batch.log"
    assert f"--output={log}" in options("plain", "/data/a b")
