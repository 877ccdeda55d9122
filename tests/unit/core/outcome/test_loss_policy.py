"""Whether an attempt continues without a node."""

from __future__ import annotations

from dataclasses import replace

import pytest

from runner.core.model.order import Hub, Order, Sidecar
from runner.core.outcome.loss_policy import is_indispensable, nodes_after_loss

HUB = Hub("a", "10.0.0.1", 29513, member_count=3, min_nodes=2, required=False)
ORDER = Order("r", "b", 0, "/w", ("torchrun",), {}, "/w", (), "", "", hub=HUB, restarts_ranks=True)
ETCD = Sidecar("etcd", "c", "10.0.0.3", 2379)


@pytest.mark.parametrize(
    ("order", "lost"),
    [
        (replace(ORDER, restarts_ranks=False), "b"),
        (replace(ORDER, hub=None), "b"),
        (replace(ORDER, hub=replace(HUB, required=True)), "a"),
        (replace(ORDER, sidecar=ETCD), "c"),
    ],
    ids=["static ranks", "no hub", "the master with the store", "the node of etcd"],
)
def test_a_loss_that_ends_the_attempt(order: Order, lost: str) -> None:
    """However many nodes remain."""
    assert is_indispensable(order, lost)
    assert nodes_after_loss(order, lost, 9) == 0


@pytest.mark.parametrize(("remaining", "expected"), [(3, 3), (2, 2), (1, 0)])
def test_enough_nodes_have_to_remain(remaining: int, expected: int) -> None:
    """`min_nodes`, or all of them."""
    assert nodes_after_loss(ORDER, "b", remaining) == expected
    assert nodes_after_loss(replace(ORDER, hub=replace(HUB, min_nodes=0)), "b", remaining) == 0
