"""Who takes part in a run whose ranks torch numbers: one membership after the other.

torch tells no rank which membership it is of. But each meets at a port of its own, the store that
its rank 0 opens (torch/distributed/elastic/rendezvous/api.py, `RendezvousStoreInfo.build`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Dict, List, Optional, Tuple

from runner.core.protocol.events import RankStarted


@dataclass
class Membership:
    """The ranks that were started together.

    Attributes:
        number: From 1.
        master: Where its ranks meet.
        world_size: How many ranks it has; 0 where nobody said.
        began: When the first of them started, by the clock of whoever counts.
        ranks: Per rank its node, and the number of its start there.
        joined: The nodes that it has, and the one before had not.
        left: The nodes that the one before had.
        compared: Whether these are known: all of the one before was seen.
    """

    number: int
    master: str
    world_size: int
    began: float
    ranks: Dict[int, Tuple[str, int]] = field(default_factory=dict)
    joined: Tuple[str, ...] = ()
    left: Tuple[str, ...] = ()
    compared: bool = False

    @property
    def whole(self) -> bool:
        """Whether every rank of it was seen to start."""
        return 0 < self.world_size <= len(self.ranks)

    @property
    def nodes(self) -> Tuple[str, ...]:
        """Its nodes, that of rank 0 first."""
        return tuple(dict.fromkeys(node for _, (node, _) in sorted(self.ranks.items())))

    def has(self, node: str, rank: int, start: int) -> bool:
        """Whether this start of a rank belongs to it."""
        return self.ranks.get(rank) == (node, start)


class Memberships:
    """All memberships of a run so far."""

    def __init__(self) -> None:
        self._all: List[Membership] = []

    @property
    def last(self) -> Optional[Membership]:
        """The one that began last; None before any rank has started."""
        return max(self._all, key=lambda each: each.began, default=None)

    @property
    def count(self) -> int:
        """How many there were."""
        return len(self._all)

    def started(self, node: str, body: RankStarted, at: float) -> Optional[Membership]:
        """Take a start of a rank; return its membership if it is whole by that."""
        found = self._of(body)
        if found is None:
            found = Membership(len(self._all) + 1, body.master, body.world_size, at)
            self._all.append(found)
        found.began = min(found.began, at)
        found.ranks[body.rank] = (node, body.start)
        if not found.whole:
            return None
        earlier = [each for each in self._all if each.began < found.began]
        before = max(earlier, key=lambda each: each.began, default=None)
        if before is not None and before.whole:
            found.compared = True
            found.joined = tuple(name for name in found.nodes if name not in before.nodes)
            found.left = tuple(name for name in before.nodes if name not in found.nodes)
        return found

    def _of(self, body: RankStarted) -> Optional[Membership]:
        for each in reversed(self._all):
            same = (each.master, each.world_size) == (body.master, body.world_size)
            if same and body.rank not in each.ranks:
                return each
        return None
