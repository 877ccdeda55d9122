"""Network probe: results of hosts that connect to each other and look up their names."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Dict, Optional, Tuple

from runner.core.model.facts import Endpoint


class Outcome(enum.Enum):
    """The outcome of a connection from one host to another."""

    REACHED = "reached"
    REFUSED = "refused"
    TIMED_OUT = "timed out"
    NO_ROUTE = "no route"
    UNREACHABLE = "unreachable"
    RESET = "reset"
    WRONG_PEER = "stranger"
    """What answered does not have the token, or is another node."""
    NO_GREETING = "mute"
    """The connection was accepted, but nothing was sent."""
    STALLED = "stalled"
    """Small packets passed, large ones did not."""
    FAILED = "failed"


@dataclass(frozen=True)
class Target:
    """The address and port on which a node listens."""

    node: str
    address: str
    port: int


@dataclass(frozen=True)
class ProbeResult:
    """One connection to a target; `rtt_s` is the round-trip time in seconds, 0 if unknown."""

    target: Target
    outcome: Outcome
    rtt_s: float = 0.0
    detail: str = ""


@dataclass(frozen=True)
class NameLookups:
    """Names and addresses that a host looks up.

    Attributes:
        addresses: The training address of every node, by node.
        master_name: The name at which the ranks meet; "" if it is an address.
        timeout_s: The time limit of each look-up.
    """

    addresses: Dict[str, str] = field(default_factory=dict)
    master_name: str = ""
    timeout_s: float = 5.0


@dataclass(frozen=True)
class NameResults:
    """The results of a host's look-ups.

    Attributes:
        queried: The nodes whose address was looked up.
        seconds: How long each answer took, by node.
        own_addresses: The addresses of its own name.
        own_name_answered: Whether the look-up of its own name was answered.
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
    """The results of one host."""

    results: Tuple[ProbeResult, ...] = ()
    name_results: NameResults = NameResults()


@dataclass(frozen=True)
class NetworkProbe:
    """The results of all hosts.

    Attributes:
        endpoints: The endpoint of each node.
        targets: The targets of each host, except its own: a port of each node, and `store_target`.
        store_target: The master's port for the rendezvous; None if not tried.
        by_node: The results of each host.
        missing_reasons: Why other hosts, whose facts are known, took no part.
        lookups: The look-ups of each host.
    """

    endpoints: Dict[str, Endpoint]
    targets: Tuple[Target, ...] = ()
    store_target: Optional[Target] = None
    by_node: Dict[str, HostProbe] = field(default_factory=dict)
    missing_reasons: Dict[str, str] = field(default_factory=dict)
    lookups: NameLookups = NameLookups()
