"""Memberships, from the starts of ranks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from runner.core.outcome.membership import Membership, Memberships
from runner.core.wire.events import RankStarted
from runner.core.wire.order import Hub, Order, Program, is_indispensable, nodes_after_loss


def start(rank: int, master: str, world: int, number: int = 1) -> RankStarted:
    return RankStarted(rank, 7, number, world, master=master)


def told(*starts: tuple[float, str, RankStarted]) -> tuple[Memberships, list[Membership]]:
    """Take starts in that order; return all, and those that became whole by one of them."""
    members = Memberships()
    whole = [members.add_start(node, body, at) for at, node, body in starts]
    return members, [each for each in whole if each]


def test_a_membership_is_whole_by_its_last_rank() -> None:
    """Two ranks on two nodes."""
    members, whole = told((1, "b", start(1, "a:1", 2)), (2, "a", start(0, "a:1", 2)))
    assert [each.number for each in whole] == [1]
    assert whole[0].nodes == ("a", "b")
    assert members.last is whole[0]


HUB = Hub("a", "10.0.0.1", 29513, member_count=3, min_nodes=2, required=False)
RESTARTS = Program(max_restarts=1)
ORDER = Order("r", "b", 0, "/w", "/w", RESTARTS, first_rank=None, hub=HUB)


@pytest.mark.parametrize(
    ("order", "lost"),
    [
        (replace(ORDER, first_rank=0), "b"),
        (replace(ORDER, hub=None), "b"),
        (replace(ORDER, hub=replace(HUB, required=True)), "a"),
    ],
    ids=["static ranks", "no hub", "the master with the store"],
)
def test_a_loss_that_ends_the_attempt(order: Order, lost: str) -> None:
    """However many nodes remain."""
    assert is_indispensable(order, lost)
    assert nodes_after_loss(order, lost, 9) == 0
