"""Messages about the memberships of an elastic run."""

from __future__ import annotations

import pytest

from runner.control.attempt.elastic import describe_membership
from runner.core.outcome.membership import Membership


@pytest.mark.parametrize(
    ("joined", "left", "compared", "text"),
    [
        ((), ("b",), True, "membership 2: 1 node, 2 ranks (b left)"),
        (("a",), ("b", "c"), True, "membership 2: 1 node, 2 ranks (b, c left, a joined)"),
        ((), (), True, "membership 2: 1 node, 2 ranks (the same nodes)"),
        ((), (), False, "membership 2: 1 node, 2 ranks"),
    ],
)
def test_a_membership_in_a_line(
    joined: tuple[str, ...], left: tuple[str, ...], compared: bool, text: str
) -> None:
    """How large it is, and who came and went, where that is known."""
    ranks = {0: ("a", 2), 1: ("a", 2)}
    assert describe_membership(Membership(2, "a:2", 2, 5.0, ranks, joined, left, compared)) == text
