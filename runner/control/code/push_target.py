"""Push target: one host while a release is pushed to it."""

from __future__ import annotations

from dataclasses import dataclass

from runner.control.rpc.session import HostSession
from runner.core.errors import Problem


@dataclass
class PushTarget:
    """One host while the release is pushed to it."""

    session: HostSession
    missing_digests: frozenset[str] | None = None  # the contents it asked for; None before that
    state: str = "offered"
    """offered, waiting (its disk is known), comparing (it has the manifest), lacking, receiving,
    storing, stored, failed; shared (another host has its disk), adopting (that one's release)"""

    store_id: str = ""  # hosts that share a disk have the same
    queued: int = 0  # bytes of the stream queued for it so far, of `total`
    total: int = 0  # bytes it lacks
    sent: int = 0  # the bytes of `queued` after compression
    is_new: bool = False  # it did not have the release before
    problem: Problem | None = None

    @property
    def percent(self) -> int:
        """How much of what it lacks it has taken."""
        return round(100 * max(0, self.queued - self.session.unsent) / (self.total or 1))

    @property
    def is_done(self) -> bool:
        """Whether nothing more is to come from it."""
        return self.state in ("stored", "failed")
