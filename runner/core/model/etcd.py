"""etcd as hosts report it: their own program, and how the endpoint of a run answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

SIDECAR_NAME = "etcd"

CLIENT_PACKAGE = ("python-etcd", "etcd")
"""torch's client for etcd: the distribution and its module."""

V2_REMOVED_IN = (3, 6)
"""etcd has no v2 API from this version on (its CHANGELOG-3.6); torch and python-etcd need it."""


@dataclass(frozen=True)
class EndpointReply:
    """The answer of a run's endpoint to a host.

    Attributes:
        error: Why there was no answer, "" if there was one.
        version: The version of etcd, "" if something else answered.
        has_v2: Whether it has the v2 API.
    """

    error: str = ""
    version: str = ""
    has_v2: bool = False


@dataclass(frozen=True)
class EtcdFacts:
    """etcd as one host sees it.

    Attributes:
        program: The path of its own etcd, "" if none is on PATH.
        version: The version of that program, "" if unknown.
        endpoint_reply: The answer of the endpoint; None if it was not tried.
    """

    program: str = ""
    version: str = ""
    endpoint_reply: Optional[EndpointReply] = None

    @property
    def supports_v2(self) -> bool:
        """Whether its program has, or may have, the v2 API."""
        parts = self.version.split(".")[:2]
        is_numeric = len(parts) == len(V2_REMOVED_IN) and all(part.isdigit() for part in parts)
        return not is_numeric or tuple(map(int, parts)) < V2_REMOVED_IN
