"""Logins over SSH: a connection for each node, and one to each jump host for all behind it."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

from runner.core.spec import Node, Ssh
from runner.transport.base import Connection
from runner.transport.endpoint import Endpoint
from runner.transport.failures import Kind, LoginFailed
from runner.transport.ssh_config import Resolver

PAUSE_SHARES = (0.1, 0.5, None)
"""The pauses after a refusal for now, before jitter, as shares of the time for a login."""


class Openable(Connection, Protocol):
    """A connection that can be made before it is opened."""

    def open(self) -> None:
        """Log in if that is not done; raise LoginFailed."""


Make = Callable[[str, Endpoint, Any], Openable]
"""Makes one of the name of a node, where to log in, and that to the jump host before it."""


class SshTransport:
    """A Transport."""

    def __init__(self, ssh: Ssh, make: Make) -> None:
        self._resolver = Resolver(ssh)
        self._make = make
        self._lock = threading.Lock()
        self._jumps: dict[tuple[tuple[str, ...], ...], Openable] = {}

    def connect(self, node: Node) -> Openable:
        """Log in to a node; raise LoginFailed."""
        connection = self.connection(node, self._make)
        try:
            connection.open()
        except LoginFailed as error:  # a jump host may have failed for another node's sake
            raise LoginFailed(error.kind, replace(error.problems[0], subject=node.name)) from None
        return connection

    def connection(self, node: Node, make: Make) -> Openable:
        """Return a connection to a node that is not open yet; raise LoginFailed."""
        route = self._resolver.route(node)
        via: Openable | None = None
        with self._lock:
            for count in range(1, len(route)):
                hops = tuple(endpoint.words for endpoint in route[:count])
                if hops not in self._jumps:
                    self._jumps[hops] = self._make(node.name, route[count - 1], via)
                via = self._jumps[hops]
        return make(node.name, route[-1], via)

    def close(self) -> None:
        """End the connections to jump hosts."""
        for connection in self._jumps.values():
            connection.close()


class Gate:
    """Lets one thread log in at a time, and lets it try again where it is refused for now.

    Where it is shared, a failure is also that of those who come soon after.
    """

    def __init__(self, timeout_s: float, *, is_shared: bool) -> None:
        self._timeout_s = timeout_s
        self._is_shared = is_shared
        self._lock = threading.Lock()
        self._failure: LoginFailed | None = None
        self._failed_at = 0.0

    def log_in(self, attempt: Callable[[], None], *, unless: Callable[[], bool]) -> None:
        """Log in, unless that is done; raise LoginFailed."""
        with self._lock:
            if unless():
                return
            if self._failure and time.monotonic() < self._failed_at + self._timeout_s:
                raise self._failure
            for share in PAUSE_SHARES:
                try:
                    attempt()
                except LoginFailed as error:
                    if share and error.kind is Kind.NOT_NOW:
                        time.sleep(self._timeout_s * share * random.uniform(0.5, 1.5))  # noqa: S311
                        continue
                    if self._is_shared:
                        self._failure = error
                        self._failed_at = time.monotonic()
                    raise
                return
