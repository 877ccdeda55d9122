"""Memberships of an attempt whose ranks torch assigns.

They are recognised by the starts of their ranks: torch tells no rank which one it belongs to. But
each has a port of its own, the store that its rank 0 opens
(torch/distributed/elastic/rendezvous/api.py, `RendezvousStoreInfo.build`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from runner.core.wire.events import RankStarted


@dataclass
class Membership:
    """Ranks that were started together."""

    number: int  # from 1
    master: str  # the address at which its ranks meet
    world_size: int  # 0 if unknown
    started_at: float  # its first start, on the controller's clock
    ranks: dict[int, tuple[str, int]] = field(default_factory=dict)  # node, number of the start
    restarts: int = 0  # by torch after failures so far, on the node that counts most

    @property
    def nodes(self) -> tuple[str, ...]:
        """Its nodes, that of rank 0 first."""
        return tuple(dict.fromkeys(node for _, (node, _) in sorted(self.ranks.items())))

    def contains(self, node: str, rank: int, start: int) -> bool:
        return self.ranks.get(rank) == (node, start)


class Memberships:
    """All memberships of an attempt so far."""

    def __init__(self) -> None:
        self._all: list[Membership] = []

    @property
    def last(self) -> Membership | None:
        """The latest one; None before any rank has started."""
        return max(self._all, key=lambda membership: membership.started_at, default=None)

    @property
    def count(self) -> int:
        return len(self._all)

    def add_start(self, node: str, body: RankStarted, at: float) -> Membership | None:
        """Add the start of a rank; return its membership if that completes it."""
        key = (body.master, body.world_size)
        same = [each for each in self._all if (each.master, each.world_size) == key]
        membership = next((each for each in reversed(same) if body.rank not in each.ranks), None)
        if membership is None:
            membership = Membership(len(self._all) + 1, body.master, body.world_size, at)
            self._all.append(membership)
        membership.started_at = min(membership.started_at, at)
        membership.ranks[body.rank] = (node, body.start)
        membership.restarts = max(membership.restarts, body.restarts)
        return membership if 0 < membership.world_size <= len(membership.ranks) else None
