"""The supervisor's door: links come to it, and say lines of JSON."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from typing import Any, Callable, Dict, Set

from runner.host.peers.group import Watch
from runner.host.storage.run_lock import Doorway


class Door:
    """An open door, with those who came in."""

    def __init__(
        self,
        doorway: Doorway,
        watch: Watch,
        unwatch: Callable[[int], None],
        told: Callable[[Dict[str, Any]], None],
    ) -> None:
        """Open it; `told` takes what a link says, and may raise what a wrong message raises."""
        self._doorway, self._watch, self._unwatch, self._told = doorway, watch, unwatch, told
        self._links: Set[socket.socket] = set()
        self._open()

    def _open(self) -> None:
        self._listener = self._doorway.listen()
        self._watch(self._listener.fileno(), self._admit)

    def keep(self) -> None:
        """Open it anew where somebody emptied /tmp; if that fails, later."""
        if os.path.exists(self._doorway.socket_path):
            return
        with contextlib.suppress(OSError):
            self._doorway.make()
            before = self._listener
            self._open()
            self._unwatch(before.fileno())
            before.close()

    def close(self) -> None:
        """Close it; whoever is in notices."""
        for each in (*self._links, self._listener):
            self._unwatch(each.fileno())
            each.close()

    def _admit(self) -> None:
        link, _ = self._listener.accept()
        link.setblocking(False)
        self._links.add(link)
        unread = bytearray()
        self._watch(link.fileno(), lambda: self._listen_to(link, unread))

    def _listen_to(self, link: socket.socket, unread: bytearray) -> None:
        try:
            said = link.recv(65536)
        except BlockingIOError:
            return
        except OSError:
            said = b""
        if not said:
            self._unwatch(link.fileno())
            self._links.discard(link)
            link.close()
            return
        unread += said
        *lines, unread[:] = unread.split(b"\n")
        for line in lines:
            with contextlib.suppress(ValueError, KeyError, TypeError):
                self._told(json.loads(line))
