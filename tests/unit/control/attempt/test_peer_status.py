"""Peer status: who decides about a relaunch, as far as a controller knows."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from runner.control.attempt.peer_status import PeerStatus


@pytest.mark.parametrize(
    ("ended", "silent", "min_nodes", "expected"),
    [
        ("abc", "", 0, False),
        ("bc", "d", 0, False),  # the hub and a spare are too few for three
        ("c", "d", 0, True),
        ("ac", "d", 0, False),  # the hub has ended
        ("bc", "", 1, False),  # alone it relaunches nothing
        ("bc", "d", 1, True),
    ],
)
def test_hosts_out_of_reach_may_relaunch_where_they_are_enough(
    ended: str, silent: str, min_nodes: int, *, expected: bool
) -> None:
    """Then a launch must not: two attempts would be on at once."""
    order = SimpleNamespace(relaunches_left=1, detached=False, hub="a")
    shares = [SimpleNamespace(node=name, order=order) for name in "abc"]
    spares = [SimpleNamespace(node="d")]
    nodes = {name: SimpleNamespace(has_ended=name in ended) for name in "abc"}
    plan = cast("Any", SimpleNamespace(nodes=shares, spares=spares, min_nodes=min_nodes))
    status = PeerStatus(plan, cast("Any", nodes), lambda name: name in silent)
    assert status.hosts_may_decide is expected
