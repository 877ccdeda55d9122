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
    WRONG_PEER = "stranger"
    """Whoever answered does not know the token, or is another node."""
    NO_GREETING = "mute"
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
class ProbeResult:
    """One try to reach a target; `rtt_s` is the round trip in seconds, 0 when unknown."""

    target: Target
    outcome: Outcome
    rtt_s: float = 0.0
    detail: str = ""


@dataclass(frozen=True)
class NameLookups:
    """What a host shall look up.

    Attributes:
        addresses: The training address of every node, by node.
        master_name: The name at which the ranks are to meet; "" when that is an address.
        timeout_s: After so long an answer does not matter any more.
    """

    addresses: Dict[str, str] = field(default_factory=dict)
    master_name: str = ""
    timeout_s: float = 5.0


@dataclass(frozen=True)
class NameResults:
    """What a host's own look-ups say.

    Attributes:
        queried: The nodes whose address was looked up.
        seconds: How long each answer took, whatever it was; nodes without one are not in it.
        own_addresses: The addresses of its own name.
        own_name_answered: Whether there was an answer to that at all.
        master_addresses: The addresses of the master's name.
        master_error: Why there are none.
    """

    queried: Tuple[str, ...] = ()
    seconds: Dict[str, float] = field(default_factory=dict)
    own_addresses: Tuple[str, ...] = ()
    own_name_answered: bool = False
    master_addresses: Tuple[str, ...] = ()
    master_error: str = ""


@dataclass(frozen=True)
class HostProbe:
    """What one host found."""

    results: Tuple[ProbeResult, ...] = ()
    name_results: NameResults = NameResults()


@dataclass(frozen=True)
class NetworkProbe:
    """What all hosts found.

    Attributes:
        endpoints: Where each node is reached by its peers.
        targets: What each host tried, but for itself: a port of each node, and `store_target`.
        store_target: The master's port, where the ranks would meet; None when not tried.
        by_node: What each host found.
        missing_reasons: Why others, whose facts are known, found nothing, or were not to be tried.
        lookups: What was looked up.
    """

    endpoints: Dict[str, Endpoint]
    targets: Tuple[Target, ...] = ()
    store_target: Optional[Target] = None
    by_node: Dict[str, HostProbe] = field(default_factory=dict)
    missing_reasons: Dict[str, str] = field(default_factory=dict)
    lookups: NameLookups = NameLookups()
