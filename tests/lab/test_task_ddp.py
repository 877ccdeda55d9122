"""Shipped tasks that share a batch, by hand: however many ranks, with the same numbers."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.lab.by_hand import EXAMPLES, python, torchrun

pytestmark = pytest.mark.tasks


EPOCHS = "--epochs=2"
STEPS = 58
RESULT = re.compile(r"test loss (\d\.\d{4}), test accuracy (\d+\.\d\d) % after (\d+) steps")


@dataclass
class Training:
    lines: list[str]

    @property
    def result(self) -> list[float]:
        found = RESULT.fullmatch(self.lines[-1])
        assert found, self.lines
        return [float(number) for number in found.groups()]

    @property
    def progress(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.lines[1:-1]]

    def assert_equals(self, other: Training) -> None:
        """Compare losses and result, up to rounding."""
        losses = [line["loss"] for line in other.progress]
        assert [line["loss"] for line in self.progress] == pytest.approx(losses, abs=2e-4)
        assert self.result == pytest.approx(other.result, abs=2e-4)


def train(name: str, *flags: str, ranks: int = 0) -> Training:
    script = str(EXAMPLES / f"{name}.py")
    done = torchrun(ranks, script, *flags) if ranks else python(script, *flags)
    assert done.returncode == 0, done
    return Training(done.stdout.splitlines())


@pytest.fixture(scope="module")
def single() -> Training:
    return train("single", EPOCHS)


def test_one_device_learns(single: Training) -> None:
    """From ln 10, the loss of a guess, to under 0.5 on images that it has not seen."""
    loss, accuracy, steps = single.result
    assert loss < 0.5
    assert accuracy > 85
    assert steps == STEPS
    assert single.lines[0] == "one process, device cpu"
    for line, step in zip(single.progress, (20, 40, 58), strict=True):
        assert line.keys() == {"step", "steps", "loss", "rate", "unit"}
        assert (line["step"], line["steps"], line["unit"]) == (step, STEPS, "images")
        assert line["rate"] > 0


def test_data_parallel_is_the_same_training(single: Training) -> None:
    """Where there is no GPU it says so in a line, and its losses are those of one device."""
    parallel = train("data_parallel", EPOCHS)
    assert "no GPU: nn.DataParallel calls the model as it is, on the CPU" in parallel.lines[0]
    parallel.assert_equals(single)


def test_two_ranks_train_as_one_device_and_go_on_from_a_checkpoint(
    single: Training, tmp_path: Path
) -> None:
    """Each takes its images of a step in two parts; then one epoch by one rank, one by two."""
    import torch  # noqa: PLC0415 - only the tests that run may need it

    paths = [tmp_path / "new" / "ddp.pt", tmp_path / "resumed.pt"]
    whole = train("ddp", EPOCHS, "--accumulate=2", f"--checkpoint={paths[0]}", ranks=2)
    train("ddp", "--epochs=1", f"--checkpoint={paths[1]}")
    rest = train("ddp", EPOCHS, f"--checkpoint={paths[1]}", ranks=2)

    assert whole.lines[0] == "world size 2, backend gloo, device cpu"
    whole.assert_equals(single)
    assert rest.lines[1] == f"goes on after epoch 1 of 2, from {paths[1]}"
    assert rest.result == pytest.approx(whole.result, abs=2e-4)
    one, other = map(torch.load, paths)
    assert one["epoch"] == 2
    assert [file.name for file in paths[0].parent.iterdir()] == ["ddp.pt"]
    torch.testing.assert_close(other, one, rtol=1e-4, atol=1e-5)


SMALL = {"layers": 1, "heads": 2, "width": 32, "context": 32, "batch_size": 8, "sample": 20}
"""A model and batches that take a second."""

ALPHABET = 68
ENTROPY_OF_LETTERS = 3.333
"""The loss of who knows how often each character of the play occurs, and nothing else, in nats."""

ADDING_UP = 2e-4
"""How far losses of two numbers of ranks may be apart, since they add up in another order; they
are printed with four decimals."""


def flags_of_gpt(**more: object) -> list[str]:
    return [f"--{name}={value}" for name, value in {**SMALL, **more}.items()]


def trained(ranks: int, *words: str) -> list[str]:
    """What a training prints; one rank needs no torchrun."""
    script = str(EXAMPLES / "char_gpt.py")
    done = torchrun(ranks, script, *words) if ranks > 1 else python(script, *words)
    assert done.returncode == 0, done
    return done.stdout.splitlines()


def losses_of_gpt(lines: Sequence[str]) -> list[float]:
    progress = [json.loads(line) for line in lines if line.startswith("{")]
    last = re.match(r"test loss (\d+\.\d{4}) after \d+ steps, \d+ tokens per second$", lines[-1])
    assert last, lines
    assert [line["step"] for line in progress] == sorted({line["step"] for line in progress})
    assert {line["unit"] for line in progress} == {"tokens"}
    return [*(line["loss"] for line in progress), float(last[1])]


def test_two_ranks_of_char_gpt_learn_what_one_does(tmp_path: Path) -> None:
    """The first loss is that of guessing; the last one is below what single letters tell."""
    words = flags_of_gpt(steps=60, log_every=1, lr=0.01)
    alone = losses_of_gpt(trained(1, *words))
    assert losses_of_gpt(trained(2, *words)) == pytest.approx(alone, abs=ADDING_UP)
    assert alone[0] == pytest.approx(math.log(ALPHABET), rel=0.02)
    assert alone[-1] < ENTROPY_OF_LETTERS
    text = tmp_path / "mine.txt"
    text.write_text("abcdefgh" * 100)
    mine = trained(1, *flags_of_gpt(steps=60, data=text, lr=0.01))
    assert losses_of_gpt(mine)[-1] < 0.5
    assert set(mine[-2]) <= set("abcdefgh")
