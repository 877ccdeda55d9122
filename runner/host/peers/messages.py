"""Messages of an election, decoded by their type, with all their fields checked.

An illegal one costs its sender the connection, and nobody else anything.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, Optional, Tuple

from runner.core.codec import decode
from runner.host.peers.connection import PeerDisconnected


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
