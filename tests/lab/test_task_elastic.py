"""The shipped task `elastic`, while real hosts lose their power and come back."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.lab.by_hand import EXAMPLES, python
from tests.lab.lab import Lab
from tests.lab.launching import PROGRAMS, Controller, Launcher
from tests.lab.test_elastic import ELASTIC

pytestmark = pytest.mark.tasks


EPOCHS = 10
STEPS = 290
BATCH = 48
SAVE_EVERY = 5


def steps(training: Controller) -> list[int]:
    logs = [path.read_text() for path in training.folder.glob("logs/*/rank_*.out")]
    lines = [line for log in logs for line in re.findall(r"^(\{.*\})\n", log, re.MULTILINE)]
    return [json.loads(line)["step"] for line in lines]


def begins(training: Controller) -> list[tuple[int, int]]:
    """For each membership its number of ranks, and the step after which it began."""
    told = re.findall(r"world size (\d+), .* begins after step (\d+) of", training.out)
    return [(int(ranks), int(step)) for ranks, step in told]


@pytest.mark.slow
def test_every_step_counts_once_while_nodes_leave_and_come_back(
    lab: Lab, on_lab: Launcher, tmp_path: Path
) -> None:
    """3 -> 2 -> 3 nodes by a power cut: the end is that of one process that nobody disturbed.

    A snapshot is taken every fifth step only, so finished steps are lost with the node and done
    again, and count once all the same.
    """
    hurry = tmp_path / "hurry"
    script = (f"task.script={PROGRAMS / 'slow_steps.py'}", "task.module=null")
    told = (f"SLOW_SCRIPT={EXAMPLES / 'elastic.py'}", f"SLOW_UNTIL={hurry}")
    args = (f"epochs={EPOCHS}", f"save_every={SAVE_EVERY}", "log_every=1")
    training = on_lab.start(
        *ELASTIC,
        "cluster.env.OMP_NUM_THREADS=1",
        "task=elastic",
        *script,
        "cluster.master=node2",
        *(f"cluster.env.{word}" for word in told),
        *(f"task.args.{word}" for word in args),
    )
    training.until(lambda: steps(training)[7:], "steps by three", 120)
    lab["node1"].power_off()
    training.until(lambda: 2 in dict(begins(training)), "a start by two", 90)
    two_begin = len(steps(training))
    training.until(lambda: steps(training)[two_begin + 7 :], "steps by two", 60)
    lab["node1"].power_on()
    training.until(lambda: len(begins(training)) == 3, "its return", 90)
    hurry.touch()
    done = training.wait(150)

    assert done.code == 0, done
    assert "membership 2: 2 nodes, 2 ranks" in done.err, done
    assert "membership 3: 3 nodes, 3 ranks" in done.err, done
    for node in ("node1", "node2", "node3"):
        for rank in range(3):
            path = f"~/.runner/runs/{training.run_id}/{node}/attempt_0/rank_{rank}.out"
            assert done.log(node, rank) == lab[node].sh(f"cat {path} 2>/dev/null || true")
    assert [ranks for ranks, _ in begins(training)] == [3, 2, 3]
    assert [step % SAVE_EVERY for _, step in begins(training)] == [0, 0, 0]
    assert 0 < begins(training)[1][1] < begins(training)[2][1]
    assert set(steps(training)) == set(range(1, STEPS + 1))
    snapshots = sorted(done.folder.glob("outputs/*/elastic.pt"))
    assert [path.parent.name for path in snapshots] == ["node1", "node2", "node3"]
    alone = tmp_path / "alone.pt"
    undisturbed = python(str(EXAMPLES / "elastic.py"), f"--epochs={EPOCHS}", f"--snapshot={alone}")
    assert result(done.out) == pytest.approx(result(undisturbed.stdout), abs=3e-3)
    assert_same_end(snapshots, alone)


def result(out: str) -> tuple[float, float]:
    """The loss and the accuracy of the test, which show that it has learnt."""
    pattern = r"test loss (\d\.\d{4}), test accuracy (\d+\.\d\d) % after 290 steps\n"
    found = re.search(pattern, out)
    assert found, out
    loss = float(found[1])
    accuracy = float(found[2]) / 100
    assert accuracy > 0.9
    return loss, accuracy


def assert_same_end(snapshots: list[Path], undisturbed: Path) -> None:
    import torch  # noqa: PLC0415 - only the tests that run may need it

    expected = torch.load(undisturbed)
    assert expected["step"] == STEPS
    assert expected["counts"].sum() == STEPS * BATCH
    for snapshot in map(torch.load, snapshots):
        assert snapshot["step"] == STEPS
        torch.testing.assert_close(snapshot["counts"], expected["counts"], rtol=0, atol=0)
        torch.testing.assert_close(snapshot["model"], expected["model"], rtol=1e-2, atol=1e-3)
