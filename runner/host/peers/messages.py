"""Messages of supervisors to each other, decoded by their type, with all their fields checked.

An illegal one costs its sender the connection, and nobody else anything.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, NamedTuple, Optional, Tuple

from runner.core.codec import decode
from runner.core.protocol.events import StopCause
from runner.host.peers.connection import PeerDisconnected


class LastHeard(NamedTuple):
    """When (monotonic) a host last heard any controller, and when the launch among them."""

    controller: float
    launch: float

    def merged(self, other: LastHeard) -> LastHeard:
        """Return the later times of two hosts."""
        controller = max(self.controller, other.controller)
        return LastHeard(controller, max(self.launch, other.launch))


@dataclass(frozen=True)
class Heartbeat:
    """Between hub and members; see `hub.heartbeat`."""

    controller_age_s: float
    launch_age_s: float
    detached: bool
    stalled_s: Optional[float] = None


@dataclass(frozen=True)
class PeerDeparted:
    """The hub tells that a node was lost `age_s` ago, and the run goes on."""

    peer: str
    reason: str
    age_s: float
    nodes: int


@dataclass(frozen=True)
class Stop:
    """The attempt stops."""

    reason: str
    cause: StopCause
    detached: bool


@dataclass(frozen=True)
class Goodbye:
    """The sender has ended its part."""


@dataclass(frozen=True)
class Reconnecting:
    """A member gives up this connection for another one."""


@dataclass(frozen=True)
class ElectionHeartbeat:
    """Of a leader, or of a follower with what it knows about the end of the attempt."""

    is_leader: bool = False
    failure_age_s: Optional[float] = None
    lost: Tuple[str, ...] = ()


@dataclass(frozen=True)
class FactsMessage:
    """A leader's question for facts, or a follower's answer, compressed."""

    facts: str = ""


@dataclass(frozen=True)
class NextAttemptMessage:
    """The leader's decision, compressed."""

    next_attempt: str


@dataclass(frozen=True)
class Cancel:
    """No attempt follows."""

    reason: str


GROUP_MESSAGES: Dict[str, Any] = {
    "heartbeat": Heartbeat,
    "peer_departed": PeerDeparted,
    "stop": Stop,
    "goodbye": Goodbye,
    "reconnecting": Reconnecting,
}
ELECTION_MESSAGES: Dict[str, Any] = {
    "heartbeat": ElectionHeartbeat,
    "facts": FactsMessage,
    "next_attempt": NextAttemptMessage,
    "cancel": Cancel,
}


def parse(kinds: Dict[str, Any], message: Any) -> Any:
    """Return a message as an object of its kind; raise PeerDisconnected if it is illegal."""
    try:
        kind = message["type"]
        return decode(kinds[kind], message)
    except (ValueError, KeyError, TypeError) as error:
        raise no_message(error) from error


def no_message(error: Exception) -> PeerDisconnected:
    """Return what to raise for an illegal message."""
    return PeerDisconnected(f"it sent what is no message: {error}")
