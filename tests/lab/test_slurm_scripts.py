"""Programs in jobs of Slurm: lines of batch scripts, and the program of the page on Slurm."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.lab.launching import ROOT, Launcher, Result
from tests.lab.slurm import Slurm
from tests.lab.test_command_lines import ROWS, SUBMITS, Row, write_project

pytestmark = pytest.mark.slurm


SCRIPT = """\
#!/bin/bash
export MASTER_ADDR=$(scontrol show hostname ${SLURM_NODELIST} | head -n 1)
torchrun --nnodes=2 --nproc_per_node=2 --rdzv_id=100 --rdzv_backend=c10d \\
    --rdzv_endpoint=$MASTER_ADDR:29400 elastic_ddp.py
"""
"""The script of the tutorial, with two ranks in place of eight."""

SCRIPT_RANKS = 2
TASKS = {
    **{"SLURM_PROCID": "RANK", "SLURM_LOCALID": "LOCAL_RANK", "SLURM_NTASKS": "WORLD_SIZE"},
    "SLURM_NODEID": "NODE_RANK",
}
"""What srun calls the numbers of a task, by torchrun's names."""

SUBMITTED = [row for row in ROWS if row.words[0] == SUBMITS]


def said(done: Result) -> dict[str, list[dict[str, Any]]]:
    """What the stubs of the page's programs printed, by node."""
    logs = sorted((done.folder / "logs").glob("*/rank_*.out"))
    by_node: dict[str, list[dict[str, Any]]] = {log.parent.name: [] for log in logs}
    for log in logs:
        by_node[log.parent.name] += map(json.loads, log.read_text().splitlines())
    return by_node


@pytest.mark.parametrize("row", SUBMITTED, ids=[row.theirs[:60] for row in SUBMITTED])
def test_lines_of_batch_scripts(row: Row, slurm: Slurm, hpc: Launcher) -> None:
    """Every rank has the place, the arguments and the names that theirs would give it."""
    write_project(hpc.folder)
    slurm.write_cluster(hpc.conf)
    (hpc.folder / "torchrun_script.sh").write_text(SCRIPT)
    (hpc.folder / "elastic_ddp.py").write_text((hpc.folder / "multinode.py").read_text())
    words = [word for word in row.words if "gpus_per_node=" not in word]  # nodes have none
    done = hpc(*words, seconds=200)
    assert done.code == 0, done
    by_node, flags = said(done), row.asked.flags
    nproc = int(flags.get("nproc_per_node", SCRIPT_RANKS))
    assert len(by_node) == int(flags["nnodes"])
    for ranks in by_node.values():
        assert sorted(int(rank["env"]["LOCAL_RANK"]) for rank in ranks) == list(range(nproc))
    everyone = [rank for ranks in by_node.values() for rank in ranks]
    assert sorted(int(rank["env"]["RANK"]) for rank in everyone) == list(range(len(everyone)))
    for rank in everyone:
        env = rank["env"]
        assert rank["argv"] == [*row.asked.args]
        assert env["WORLD_SIZE"] == str(len(everyone))
        assert env["MASTER_ADDR"]
        if "task.entry=srun" in words:
            assert {name: env[name] for name in TASKS} == {n: env[o] for n, o in TASKS.items()}
            assert env["SLURM_NTASKS_PER_NODE"] == str(nproc)


def test_program_of_the_page_goes_on(slurm: Slurm, hpc: Launcher, steps: Path) -> None:
    """It saves when its time is nearly over, and goes on there once the job has started again."""
    page = (ROOT / "docs" / "slurm.md").read_text(encoding="utf-8")
    (text,) = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    few = text.replace("1_000_000", "begin + 3 if begin else 1_000_000")
    assert few != text
    (hpc.folder / "train.py").write_text(few)
    limit = ("time=0:20:00", "signal_before=60", "requeue=true")
    slurm_words = (f"cluster.slurm.{word}" for word in limit)
    started = hpc.start(SUBMITS, "task.script=train.py", *slurm_words, "--", f"{steps}/saved.pt")
    started.until_printed("from step 0", 2)
    job_id = slurm.job(started.run_id)["JobId"]
    slurm.sh(f"scancel --batch --signal=USR1 {job_id}")  # as Slurm does before the limit
    started.until(lambda: "pending (BeginTime)" in started.err, "the job to wait")
    assert "was killed" not in started.err
    slurm.start_again(started.run_id)
    done = started.wait()
    assert done.code == 0, done
    assert len({*re.findall(r"from step [1-9]\d*\n", done.out)}) == 1, done


def printed(text: str, verb: str) -> list[str]:
    """Return the words of the only command with this verb that a text has."""
    (line,) = {*re.findall(rf"\bpython -m runner ({verb} .*)$", text, re.MULTILINE)}
    return str(line).split()


def test_commands_about_a_pending_run_work(slurm: Slurm, hpc: Launcher) -> None:
    """Those that a launch, a verb and an `attach` that leaves it print."""
    assert hpc(SUBMITS, *hpc.rank_overrides("print=earlier")).code == 0
    later = 'cluster.slurm.extra=["--begin=now+1hour"]'
    launched = hpc(SUBMITS, *hpc.rank_overrides("print=hi"), later, "detach=true")
    follower = hpc.start(*printed(launched.err, "attach"))
    follower.until(lambda: "is pending (BeginTime)" in follower.err, "it to wait")
    follower.send(signal.SIGHUP)
    left = follower.wait()
    assert left.code == 129, left
    refused = hpc("logs", *printed(left.err, "attach")[1:])
    assert "has not begun: job" in refused.err
    assert printed(refused.err, "attach") == printed(launched.err, "attach")
    assert printed(refused.err, "stop") == printed(left.err, "stop")
    assert slurm.jobs("%T") == ["PENDING"]
    assert hpc(*printed(refused.err, "stop")).code == 0
    assert not slurm.jobs()
    assert "never began: its job was cancelled" in hpc("why", *printed(left.err, "attach")[1:]).err
    assert "stopped" in hpc("ps", "--all", "--cluster", "hpc").out
    assert hpc("logs", "--cluster", "hpc").out.count("earlier\n") == 2
