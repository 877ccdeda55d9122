"""Peer status: who decides about a relaunch, as far as a controller knows."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from runner.control.attempt.peer_status import PeerStatus


@pytest.mark.parametrize(
    ("ended", "voter_count", "expected"),
    [
        ("abc", 3, False),
        ("ab", 3, False),
        ("a", 3, True),
        ("a", 4, False),  # with a spare that is in reach
        ("", 0, False),  # they cannot decide
    ],
)
def test_hosts_out_of_reach_may_relaunch_where_they_are_most(
    ended: str, voter_count: int, *, expected: bool
) -> None:
    """Then a launch must not: two attempts would be on at once."""
    order = SimpleNamespace(voter_count=voter_count, detached=False)
    shares = [SimpleNamespace(node=name, order=order) for name in "abc"]
    nodes = {name: SimpleNamespace(has_ended=name in ended) for name in "abc"}
    plan = cast("Any", SimpleNamespace(nodes=shares))
    assert PeerStatus(plan, cast("Any", nodes)).hosts_may_decide is expected
