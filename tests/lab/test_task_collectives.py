"""The shipped task `collectives`: by hand under plain torchrun, and over SSH on the lab's hosts."""

from __future__ import annotations

import json
import re
import socket
import subprocess
from pathlib import Path

import pytest

import runner
from tests.lab.by_hand import TORCHRUN, python
from tests.lab.lab import Lab
from tests.lab.launching import PROGRAMS, Launcher

pytestmark = pytest.mark.tasks


MEDDLING = str(PROGRAMS / "meddling.py")
SCRIPT = str(Path(runner.__file__).parent / "tasks" / "collectives.py")


def torchrun(ranks: int, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    return python(*TORCHRUN, "--standalone", f"--nproc_per_node={ranks}", *words, **env)


def test_all_modes_by_hand(tmp_path: Path) -> None:
    """Sizes are whole elements for each rank; the rates follow from size, time and factor."""
    path = tmp_path / "new" / "results.json"
    sizes = ("--min_bytes=1K", "--max_bytes=64K", "--iters=3")
    done = torchrun(3, SCRIPT, "--mode=all", *sizes, "--seconds=1", f"--json={path}")
    assert done.returncode == 0, done
    results = json.loads(path.read_text())
    factors = {
        "all_reduce": 4 / 3,
        "all_gather": 2 / 3,
        "reduce_scatter": 2 / 3,
        "broadcast": 1,
        "all_to_all": 2 / 3,
    }
    rows = results["bandwidth"]
    assert [(row["operation"], row["bytes"]) for row in rows] == [
        (op, size // 12 * 12) for op in factors for size in (1 << 10, 1 << 13, 1 << 16)
    ]
    for row in rows:
        assert row["algbw"] == pytest.approx(row["bytes"] / row["seconds"])
        assert row["busbw"] == pytest.approx(row["algbw"] * factors[row["operation"]])
        assert row["wrong"] == 0
    smoke = results["smoke"]
    assert (smoke["wrong"], smoke["seconds"] >= 1) == (0, True)
    assert f"smoke: {smoke['steps']} times all_reduce of 4 MB in " in done.stdout


@pytest.mark.parametrize(
    ("mode", "what"), [("smoke", "smoke, step 1"), ("bandwidth", "all_reduce of 4096 bytes")]
)
def test_a_wrong_sum_fails(mode: str, what: str) -> None:
    """Once per rank in words."""
    flags = (f"--mode={mode}", "--seconds=0.5", "--max_bytes=4K")
    done = torchrun(2, MEDDLING, *flags, MEDDLE=f"1 all_reduce corrupt {SCRIPT}")
    assert done.returncode == 1, done
    told = f"^rank 1 on {socket.gethostname()}: {what}: element 0 is 2.0, expected 1.0"
    assert len(re.findall(told, done.stderr, re.MULTILINE)) == 1, done


def test_pairs_name_the_slow_host(lab: Lab, on_lab: Launcher) -> None:
    """One host takes its time for each message."""
    meddle = f'cluster.env.MEDDLE="2 batch_isend_irecv late {SCRIPT}"'
    script = (f"task.script={MEDDLING}", "task.module=null", meddle)
    few = ("task.args.iters=3", "task.args.pair_bytes=1M")
    plain = ("task.entry=plain", "cluster.env.OMP_NUM_THREADS=1")
    done = on_lab("cluster=lab4", "task=collectives", "task.args.mode=pairs", *script, *few, *plain)

    assert done.code == 0, done
    named = re.findall(r"(\w+) is slow: [\d.]+ of the others' median", done.log("node1", 0))
    assert named == ["node3"], done
    (path,) = done.folder.glob("outputs/*/collectives.json")
    pairs = json.loads(path.read_text())["pairs"]
    assert (pairs["nodes"], pairs["slow"]) == (list(lab.hosts), ["node3"])
    for one in range(4):
        for other in range(4):
            assert (pairs["bandwidth"][one][other] > 0) == (one != other)
            is_late = one != other and 2 in (one, other)
            assert not is_late or pairs["latency"][one][other] >= 0.0099, done
    assert [done.log(f"node{rank + 1}", rank) for rank in (1, 2, 3)] == [""] * 3
