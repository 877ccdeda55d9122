"""Training with plain torch in one process: what the shipped distributed tasks must equal."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

ROUNDING = 2e-6
"""Between sums of float32 in one order and in another, of numbers below 1."""


def progress(out: str, steps: int, unit: str = "samples") -> list[float]:
    """Return the losses that a task has printed of each step; its last line repeats the last."""
    *lines, last = out.splitlines()
    rows = [json.loads(line) for line in lines]
    assert [(row["step"], row["steps"], row["unit"]) for row in rows] == [
        (step, steps, unit) for step in range(rows[0]["step"], steps + 1)
    ]
    assert all(row["rate"] > 0 for row in rows)
    assert last == f"loss {rows[-1]['loss']:.4f} after {steps} steps"
    return [row["loss"] for row in rows]


def train(compute_loss: Callable[[int], Any], optimizer: Any, steps: int) -> list[float]:
    """Step by the loss of each whole batch, counted from 1; return the losses."""
    losses = []
    for step in range(1, steps + 1):
        loss = compute_loss(step)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses
