"""What the hosts of a cluster find when they try to reach each other, and look up their names."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Dict, Optional, Tuple

from runner.core.planning.addresses import Endpoint


class Outcome(enum.Enum):
    """How one host's try to reach another ended."""

    REACHED = "reached"
    REFUSED = "refused"
    TIMED_OUT = "timed out"
    NO_ROUTE = "no route"
    UNREACHABLE = "unreachable"
    RESET = "reset"
    STRANGER = "stranger"
    """Whoever answered does not know the token, or is another node."""
    MUTE = "mute"
    """The connection was made, and nothing was said."""
    STALLED = "stalled"
    """Small packets passed, large ones did not."""
    FAILED = "failed"


@dataclass(frozen=True)
class Target:
    """Where a node listens."""

    node: str
    address: str
    port: int


@dataclass(frozen=True)
class Contact:
    """One try to reach a target; `trip_s` is the round trip in seconds, 0 when unknown."""

    target: Target
    outcome: Outcome
    trip_s: float = 0.0
    detail: str = ""


@dataclass(frozen=True)
class Questions:
    """What a host shall look up.

    Attributes:
        addresses: The training address of every node, by node.
        master: The name at which the ranks are to meet; "" when that is an address.
        limit_s: After so long an answer does not matter any more.
    """

    addresses: Dict[str, str] = field(default_factory=dict)
    master: str = ""
    limit_s: float = 5.0


@dataclass(frozen=True)
class Names:
    """What a host's own look-ups say.

    Attributes:
        asked: The nodes whose address was looked up.
        seconds: How long each answer took, whatever it was; nodes without one are not in it.
        own: The addresses of its own name.
        own_known: Whether there was an answer to that at all.
        master: The addresses of the master's name.
        master_error: Why there are none.
    """

    asked: Tuple[str, ...] = ()
    seconds: Dict[str, float] = field(default_factory=dict)
    own: Tuple[str, ...] = ()
    own_known: bool = False
    master: Tuple[str, ...] = ()
    master_error: str = ""


@dataclass(frozen=True)
class Found:
    """What one host found."""

    contacts: Tuple[Contact, ...] = ()
    names: Names = Names()


@dataclass(frozen=True)
class Probed:
    """What all hosts found.

    Attributes:
        endpoints: Where each node is reached by its peers.
        targets: What each host tried, but for itself: a port of each node, and `store`.
        store: The master's port, where the ranks would meet; None when not tried.
        of: What each host found.
        silent: Why others, whose facts are known, found nothing, or were not to be tried.
        questions: What was looked up.
    """

    endpoints: Dict[str, Endpoint]
    targets: Tuple[Target, ...] = ()
    store: Optional[Target] = None
    of: Dict[str, Found] = field(default_factory=dict)
    silent: Dict[str, str] = field(default_factory=dict)
    questions: Questions = Questions()
