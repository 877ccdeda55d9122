"""The next attempt of a run whose launch is gone: who takes part, with which numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from runner.core.wire.order import Hub, Notify, Order, Program, is_indispensable, nodes_after_loss
from runner.core.wire.plan import next_attempt

NPROC = {"a": 2, "b": 1, "c": 2, "d": 4}
HUB = Hub("a", "10.0.0.1", 29513, spares=("d",))


def order(node: str, rank: int, **changes: object) -> Order:
    made = Order(
        *("run", node, 0, "/w", "/w"),
        nproc=NPROC[node],
        node_rank=rank,
        nnodes=3,
        hub=HUB,
        ports=(29600, 29601),
        disconnect_s=600.0,
        relaunches_left=2,
        relaunch_pause_s=200.0,
    )
    return replace(made, **changes)  # type: ignore[arg-type]


ORDERS = {
    "a": order("a", 0, notify=Notify(("mail",), "lab", "t", ("a", "b", "c"))),
    "b": order("b", 1),
    "c": order("c", 2),
    "d": order("d", 0, is_standby=True, first_rank=None),
}


def test_a_spare_takes_the_place_of_a_lost_node() -> None:
    """The ranks are counted anew, the ports are the next ones, and no launch is waited for."""
    made = next_attempt(ORDERS, {"b"}, ["d"])
    assert isinstance(made, dict)
    assert {name: (o.node_rank, o.first_rank, o.world_size) for name, o in made.items()} == {
        "a": (0, 0, 8),
        "c": (1, 2, 8),
        "d": (2, 4, 8),
    }
    assert {o.hub for o in made.values()} == {replace(HUB, spares=())}
    for each in made.values():
        numbers = (each.attempt, each.master_port, each.ports, each.relaunches_left)
        assert numbers == (1, 29600, (29601,), 1)
        assert (each.detached, each.disconnect_s, each.relaunch_pause_s) == (True, 0.0, 300.0)
        assert not each.is_standby
    assert made["a"].notify == Notify(("mail",), "lab", "t", ("a", "c", "d"))


@pytest.mark.parametrize(
    ("suspected", "standing_by", "nodes", "spares"),
    [
        ("c", ["d"], "abd", "c"),
        ("c", [], "abc", ""),
        ("a", ["d"], "abc", "d"),  # the hub stays
        ("", ["d"], "abc", "d"),
    ],
)
def test_who_failed_first_makes_room_for_a_spare(
    suspected: str, standing_by: list[str], nodes: str, spares: str
) -> None:
    """It stands by from then on, and may be needed again."""
    lost = {"d"} - {*standing_by}
    made = next_attempt(ORDERS, lost, standing_by, suspected)
    assert isinstance(made, dict)
    assert [n for n, each in made.items() if not each.is_standby] == [*nodes]
    assert [n for n, each in made.items() if each.is_standby] == [*spares]
    again = next_attempt(made, {"b"}, [*spares])
    assert isinstance(again, dict) is bool(spares)


def test_too_few_are_left() -> None:
    """That is said with numbers; an elastic run may go on with fewer."""
    lost = {"b", "c"}
    assert next_attempt(ORDERS, lost, ["d"]) == "2 of 4 nodes are left for 3"
    elastic = {n: replace(each, min_nodes=2, first_rank=None) for n, each in ORDERS.items()}
    made = next_attempt(elastic, lost, ["d"])
    assert isinstance(made, dict)
    assert [(n, each.first_rank, each.nnodes) for n, each in made.items()] == [
        ("a", None, 2),
        ("d", None, 2),
    ]


def test_the_node_that_decides_has_no_substitute() -> None:
    """Neither when it is lost, nor when it failed."""
    orders = {**ORDERS, "b": replace(ORDERS["b"], decides=True)}
    assert next_attempt(orders, {"b"}, ["d"]) == "b decides the end, and cannot be used"
    made = next_attempt(orders, set(), ["d"], "b")
    assert isinstance(made, dict)
    assert not made["b"].is_standby


TORCHS_RANKS = replace(ORDERS["b"], first_rank=None, program=Program(max_restarts=1))


@pytest.mark.parametrize(
    ("changes", "lost"),
    [({"first_rank": 0}, "b"), ({"hub": None}, "b"), ({"master_port": 29500}, "a")],
    ids=["static ranks", "no hub", "the master with the store"],
)
def test_a_loss_that_ends_the_attempt(changes: dict[str, Any], lost: str) -> None:
    """However many nodes remain."""
    order = replace(TORCHS_RANKS, **changes)
    assert is_indispensable(order, lost)
    assert nodes_after_loss(order, lost, 9) == 0
