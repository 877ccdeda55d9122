"""Signals of the controller: they arrive in the inbox, in order with what hosts say."""

from __future__ import annotations

import contextlib
import queue
import signal
from collections.abc import Iterator

from runner.control.attempt.monitor import AttemptMonitor
from runner.control.rpc.session import Inbox
from runner.core.protocol.frames import Frame

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def enqueue_signal(inbox: Inbox, signum: int) -> None:
    """Put a signal into the inbox."""
    inbox.put((None, Frame("signal", {"signal": signum})))


@contextlib.contextmanager
def forward_signals(inbox: Inbox) -> Iterator[None]:
    """Have every signal that asks this process to end arrive in the inbox."""
    handled = [signum for signum in SIGNALS if signal.getsignal(signum) != signal.SIG_IGN]  # nohup
    previous_handlers = {
        signum: signal.signal(signum, lambda number, _: enqueue_signal(inbox, number))
        for signum in handled
    }
    try:
        yield
    finally:
        for signum, handler in previous_handlers.items():
            signal.signal(signum, handler)


def signal_pending(inbox: Inbox) -> bool:
    """Return whether a signal came that nothing has taken; empties the inbox."""
    with contextlib.suppress(queue.Empty):
        while True:
            session, frame = inbox.get_nowait()
            if session is None and frame.kind == "signal":
                return True
    return False


def leave_on_signal(monitor: AttemptMonitor) -> list[int]:
    """Have every signal end the monitor and nothing else; return where they are noted."""
    signals: list[int] = []

    def leave(signum: int) -> bool:
        signals.append(signum)
        monitor.leave()
        return False

    monitor.on_interrupt = leave
    return signals
