"""char_gpt: it learns, and its losses do not depend on how many ranks and nodes share a batch."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.lab.by_hand import EXAMPLES, python, torchrun

pytestmark = pytest.mark.tasks


SCRIPT = str(EXAMPLES / "char_gpt.py")
SMALL = {"layers": 1, "heads": 2, "width": 32, "context": 32, "batch_size": 8, "sample": 20}
"""A model and batches that take a second."""

ALPHABET = 68
ENTROPY_OF_LETTERS = 3.333
"""The loss of who knows how often each character of the play occurs, and nothing else, in nats."""

ADDING_UP = 2e-4
"""How far losses of two numbers of ranks may be apart, since they add up in another order; they
are printed with four decimals."""


def flags(**more: object) -> list[str]:
    return [f"--{name}={value}" for name, value in {**SMALL, **more}.items()]


def trained(ranks: int, *words: str) -> list[str]:
    """What a training prints; one rank needs no torchrun."""
    done = torchrun(ranks, SCRIPT, *words) if ranks > 1 else python(SCRIPT, *words)
    assert done.returncode == 0, done
    return done.stdout.splitlines()


def losses(lines: Sequence[str]) -> list[float]:
    progress = [json.loads(line) for line in lines if line.startswith("{")]
    last = re.match(r"test loss (\d+\.\d{4}) after \d+ steps, \d+ tokens per second$", lines[-1])
    assert last, lines
    assert [line["step"] for line in progress] == sorted({line["step"] for line in progress})
    assert {line["unit"] for line in progress} == {"tokens"}
    return [*(line["loss"] for line in progress), float(last[1])]


def test_two_ranks_learn_what_one_does(tmp_path: Path) -> None:
    """The first loss is that of guessing; the last one is below what single letters tell."""
    words = flags(steps=60, log_every=1, lr=0.01)
    alone = losses(trained(1, *words))
    assert losses(trained(2, *words)) == pytest.approx(alone, abs=ADDING_UP)
    assert alone[0] == pytest.approx(math.log(ALPHABET), rel=0.02)
    assert alone[-1] < ENTROPY_OF_LETTERS
    text = tmp_path / "mine.txt"
    text.write_text("abcdefgh" * 100)
    mine = trained(1, *flags(steps=60, data=text, lr=0.01))
    assert losses(mine)[-1] < 0.5
    assert set(mine[-2]) <= set("abcdefgh")
