"""Event loop of a supervisor: it waits for readable descriptors, ended children and SIGTERM."""

from __future__ import annotations

import os
import resource
import selectors
import signal
import socket
from typing import Any, Callable, Optional, Tuple

RESERVED_FDS = 32  # that are left for files and processes when no connection is accepted


class EventLoop:
    def __init__(self) -> None:
        self.term_received = False
        self._selector = selectors.DefaultSelector()
        self._wakeup: Tuple[int, ...] = ()

    def open(self) -> None:
        """Handle signals from now on: note SIGTERM, ignore those of a terminal."""
        read_fd, write_fd = os.pipe()
        for descriptor in (read_fd, write_fd):
            os.set_blocking(descriptor, False)
        signal.set_wakeup_fd(write_fd, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, self._on_term)
        for signum in (signal.SIGINT, signal.SIGHUP):
            signal.signal(signum, signal.SIG_IGN)
        self._wakeup = (read_fd, write_fd)
        self.add_reader(read_fd, lambda: os.read(read_fd, 4096))

    def add_reader(self, descriptor: int, handler: Callable[[], Any]) -> None:
        self._selector.register(descriptor, selectors.EVENT_READ, handler)

    def remove_reader(self, descriptor: int) -> None:
        self._selector.unregister(descriptor)

    @staticmethod
    def accept(listener: socket.socket) -> Optional[socket.socket]:
        """Return a new connection; None if it has gone again, or if too few descriptors are left.

        It is refused then: left alone, it would keep the listener readable.
        """
        try:
            connection = listener.accept()[0]
        except OSError:
            return None
        soft_limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if connection.fileno() >= soft_limit - RESERVED_FDS > 0:  # the lowest free one is taken
            connection.close()
            return None
        return connection

    def wait(self, seconds: float) -> None:
        for key, _ in self._selector.select(seconds):
            key.data()

    def close(self) -> None:
        """Close the descriptors, and leave signals to the next loop."""
        signal.set_wakeup_fd(-1)
        for descriptor in self._wakeup:
            os.close(descriptor)
        self._selector.close()

    def _on_term(self, *_: Any) -> None:
        self.term_received = True
