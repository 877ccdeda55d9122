"""What a supervisor sleeps on: what others say, the death of a child, a signal to end."""

from __future__ import annotations

import os
import selectors
import signal
from typing import Any, Callable, Tuple


class EventLoop:
    """Descriptors and who reads them, and the signals of this process.

    Attributes:
        term_received: Whether this process was told to end.
    """

    def __init__(self) -> None:
        self.term_received = False
        self._selector = selectors.DefaultSelector()
        self._wakeup: Tuple[int, ...] = ()

    def open(self) -> None:
        """Heed signals from now on: TERM asks for the end, and a terminal's are not for us."""
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
        """Call it whenever there is something to read."""
        self._selector.register(descriptor, selectors.EVENT_READ, handler)

    def remove_reader(self, descriptor: int) -> None:
        """Do not any more."""
        self._selector.unregister(descriptor)

    def wait(self, seconds: float) -> None:
        """Sleep until there is something to read or a signal comes, and have it read."""
        for key, _ in self._selector.select(seconds):
            key.data()

    def close(self) -> None:
        """Leave no descriptor open, and signals to whoever comes next."""
        signal.set_wakeup_fd(-1)
        for descriptor in self._wakeup:
            os.close(descriptor)
        self._selector.close()

    def _on_term(self, *_: Any) -> None:
        self.term_received = True
