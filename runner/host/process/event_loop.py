"""What a supervisor sleeps on: what others say, the death of a child, a signal to end."""

from __future__ import annotations

import os
import selectors
import signal
from typing import Any, Callable, Tuple


class Loop:
    """Descriptors and who reads them, and the signals of this process.

    Attributes:
        signalled: Whether this process was told to end.
    """

    def __init__(self) -> None:
        self.signalled = False
        self._selector = selectors.DefaultSelector()
        self._wakeup: Tuple[int, ...] = ()

    def open(self) -> None:
        """Heed signals from now on: TERM asks for the end, and a terminal's are not for us."""
        reading, writing = os.pipe()
        for descriptor in (reading, writing):
            os.set_blocking(descriptor, False)
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, self._note_signal)
        for signum in (signal.SIGINT, signal.SIGHUP):
            signal.signal(signum, signal.SIG_IGN)
        self._wakeup = (reading, writing)
        self.watch(reading, lambda: os.read(reading, 4096))

    def watch(self, descriptor: int, handler: Callable[[], Any]) -> None:
        """Call it whenever there is something to read."""
        self._selector.register(descriptor, selectors.EVENT_READ, handler)

    def unwatch(self, descriptor: int) -> None:
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

    def _note_signal(self, *_: Any) -> None:
        self.signalled = True
