"""Network probe: results of hosts that connect to each other."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Dict, Tuple

from runner.core.model.facts import Endpoint


class Outcome(enum.Enum):
    """The outcome of a connection from one host to another."""

    REACHED = "reached"
    REFUSED = "refused"
    TIMED_OUT = "timed out"
    NO_ROUTE = "no route"
    UNREACHABLE = "unreachable"
    RESET = "reset"
    WRONG_PEER = "stranger"  # what answered does not have the token, or is another node
    NO_GREETING = "mute"  # the connection was accepted, but nothing was sent
    STALLED = "stalled"  # small packets passed, large ones did not
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
class NetworkProbe:
    """The results of all hosts."""

    endpoints: Dict[str, Endpoint]  # by node
    targets: Tuple[Target, ...] = ()  # ports of all nodes; a host skips its own
    by_node: Dict[str, Tuple[ProbeResult, ...]] = field(default_factory=dict)
    missing_reasons: Dict[str, str] = field(default_factory=dict)  # of hosts that took no part
