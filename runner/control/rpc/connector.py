"""Connector: opens a session to a node over its transport, and boots the agent there."""

from __future__ import annotations

import threading
from collections.abc import Callable

from runner.control.rpc import bootstrap
from runner.control.rpc.session import HostSession, Inbox
from runner.core.model.spec import Node, Spec
from runner.transport.base import Transport
from runner.transport.local import LocalTransport


class Connector:
    """Connections to the nodes of one spec; a transport is made when it is first needed."""

    def __init__(self, spec: Spec, on_note: Callable[[str], None]) -> None:
        self.spec = spec
        self._on_note = on_note
        self._transports: dict[str, Transport] = {}
        self._lock = threading.Lock()

    def open(self, node: Node, inbox: Inbox) -> HostSession:
        """Connect to `node` and boot our agent there.

        Raises:
            NotReady: It cannot be reached.
        """
        command = bootstrap.boot_command(self.spec.host_python, self.spec.run_id, node.name)
        code = bootstrap.host_code()  # before the session reads: making it may take a while
        session = HostSession(node, self.transport(node.transport).open(node, command), inbox)
        session.send_raw(code)
        return session

    def transport(self, kind: str) -> Transport:
        """Return the transport of that kind."""
        with self._lock:
            if kind not in self._transports:
                self._transports[kind] = self._make_transport(kind)
            return self._transports[kind]

    def close(self) -> None:
        """End every connection."""
        with self._lock:
            for transport in self._transports.values():
                transport.close()

    def _make_transport(self, kind: str) -> Transport:
        if kind == "local":
            return LocalTransport()
        from runner.transport.ssh.transport import SshTransport

        return SshTransport(self.spec.ssh, on_note=self._on_note)
