"""The shipped task `elastic`, while real hosts lose their power and come back."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

import pytest

from tests.lab.by_hand import EXAMPLES
from tests.lab.lab import Lab
from tests.lab.launching import PROGRAMS, Controller, Launcher
from tests.lab.test_elastic import ELASTIC

pytestmark = pytest.mark.tasks


EPOCHS, PER_EPOCH, BATCH, SAVE_EVERY = 10, 29, 48, 5
STEPS = EPOCHS * PER_EPOCH


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
    assert "membership 2: 2 nodes, 2 ranks; restart 1" in done.err, done
    assert "membership 3: 3 nodes, 3 ranks; restart 1" in done.err, done
    for node in ("node1", "node2", "node3"):
        for rank in range(3):
            path = f"~/.runner/runs/{training.run_id}/{node}/attempt_0/rank_{rank}.out"
            assert done.log(node, rank) == lab[node].sh(f"cat {path} 2>/dev/null || true")
    assert [ranks for ranks, _ in begins(training)] == [3, 2, 3]
    assert [step % SAVE_EVERY for _, step in begins(training)] == [0, 0, 0]
    assert 0 < begins(training)[1][1] < begins(training)[2][1]
    assert set(steps(training)) == set(range(1, STEPS + 1))
    result = re.search(
        r"test loss (\d\.\d{4}), test accuracy \d+\.\d\d % after 290 steps\n", done.out
    )
    assert result, done
    snapshots = sorted(done.folder.glob("outputs/*/elastic.pt"))
    assert [path.parent.name for path in snapshots] == ["node1", "node2", "node3"]
    assert_undisturbed(snapshots, float(result[1]))


def assert_undisturbed(snapshots: list[Path], test_loss: float) -> None:
    """Compare with the same training on one device, written down once more without the task."""
    import torch  # noqa: PLC0415 - only the tests that run may need it

    with gzip.open(EXAMPLES / "digits.csv.gz", "rt") as file:
        rows = torch.tensor([[int(value) for value in line.split(",")] for line in file])
    test = torch.arange(len(rows)) % 5 == 0
    images, labels = rows[~test, :64] / 16, rows[~test, 64]
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    counts = torch.zeros(len(images), dtype=torch.int64)
    for epoch in range(EPOCHS):
        order = torch.randperm(len(images), generator=torch.Generator().manual_seed(epoch))
        for number in range(PER_EPOCH):
            batch = order[number * BATCH : (number + 1) * BATCH]
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(images[batch]), labels[batch])
            torch.autograd.backward(loss)
            optimizer.step()
            counts[batch] += 1
    loss = torch.nn.functional.cross_entropy(model(rows[test, :64] / 16), rows[test, 64])
    assert test_loss == pytest.approx(loss.item(), abs=1e-3)
    for snapshot in map(torch.load, snapshots):
        assert snapshot["step"] == STEPS
        torch.testing.assert_close(snapshot["counts"], counts, rtol=0, atol=0)
        torch.testing.assert_close(snapshot["model"], model.state_dict(), rtol=1e-2, atol=1e-3)
