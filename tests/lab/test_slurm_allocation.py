"""Runs in an allocation of a user: it is left as it was."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tests.lab.launching import Launcher
from tests.lab.slurm import PYTHON, ROOT, Slurm
from tests.lab.waiting import wait_until

pytestmark = pytest.mark.slurm


def script_in(project: Path, slurm: Slurm, body: str) -> Path:
    """Write a project, and a script in it; `$R` is our program, `words` are those of a run."""
    (project / "conf/cluster").mkdir(parents=True)
    slurm.write_cluster(project / "conf", transport="local", login_node=None, ssh={"key": None})
    ranks = Launcher(project / "none").rank_overrides("print=hi")
    (project / "ranks").write_text("\n".join(ranks))
    for path in (project, *project.rglob("*")):
        path.chmod(0o777)
    head = f"""
cd {project}
mapfile -t words < ranks
words=(cluster=hpc "${{words[@]}}" task.entry=plain)
export PYTHONPATH={ROOT}
R="{PYTHON} -m runner"
"""
    (project / "script").write_text(head + body)
    return project / "script"


def in_allocation(slurm: Slurm, script: Path) -> str:
    """Return what a script prints in an allocation of two nodes."""
    return slurm.sh(f"timeout 50 salloc -N2 bash {script} 2>&1", timeout=60, check=False)


def test_allocation_is_used(slurm: Slurm, tmp_path: Path) -> None:
    """Inside salloc no other job is made, and `stop` ends the step alone."""
    script = """
$R "${words[@]}"; echo code $?
$R "${words[@]}" 'task.args=["sleep=300"]' detach=true
until $R ps | grep -q running; do sleep 0.1; done
$R stop --run $(basename $(readlink -f runs/latest)); echo code $?
echo jobs $(squeue -h -o %T)
echo steps $(squeue -h -s)
"""
    out = in_allocation(slurm, script_in(tmp_path / "inside", slurm, script))
    assert out.count("code 0") == 2, out
    assert out.count("hi\n") == 2
    assert "no process is left" in out
    assert "jobs RUNNING\nsteps\n" in out


def test_cancelled_step_starts_nothing(slurm: Slurm, tmp_path: Path) -> None:
    """While its nodes still do their setup, nothing is on record, and the step ends with them."""
    script = f"""
$R "${{words[@]}}" 'task.args=["touch={tmp_path}/inside/ran"]' 'cluster.setup=["sleep 4"]' &
until squeue -h -s -o %j | grep -q rank; do sleep 0.1; done
kill -TERM $!; wait $!; echo code $?
echo jobs $(squeue -h -o %T)
echo steps $(squeue -h -s)
sleep 5
"""
    out = in_allocation(slurm, script_in(tmp_path / "inside", slurm, script))
    assert "its job is cancelled; nothing of it had begun\ncode 143" in out, out
    assert "jobs RUNNING\nsteps\n" in out
    assert not (tmp_path / "inside/ran").exists()


@pytest.mark.all
def test_lost_first_node_leaves_the_allocation(slurm: Slurm, tmp_path: Path) -> None:
    """The step of the run is ended, not the job, and nothing is requeued."""
    requeue = "cluster.slurm.requeue=true"
    script = f"""
$R "${{words[@]}}" 'task.args=["touch={tmp_path}/inside/RANK","sleep=300"]' lost_s=4 {requeue}
echo code $?
echo jobs $(squeue -h -o %T)
"""
    path = script_in(tmp_path / "inside", slurm, script)

    def cut() -> None:
        begun = [tmp_path / "inside" / rank for rank in "01"]
        wait_until(lambda: all(path.exists() for path in begun), "the ranks to begin")
        slurm.nodes["node1"].power_off()

    thread = threading.Thread(target=cut)
    thread.start()
    out = in_allocation(slurm, path)
    thread.join()
    assert "code 4\njobs RUNNING\n" in out, out
