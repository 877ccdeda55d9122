"""Reconnection to the nodes of an attempt whose connection broke, with growing pauses."""

from __future__ import annotations

import functools
import random
import threading
import time
from dataclasses import dataclass, field

from runner.control.rpc.connector import Connector
from runner.control.rpc.facts import MAX_CONCURRENT_LOGINS
from runner.control.rpc.session import Inbox
from runner.core.errors import NotReady
from runner.core.model.spec import Node
from runner.core.protocol.frames import Frame

MIN_BACKOFF_S, MAX_BACKOFF_S = 0.3, 15.0
"""The pause before the first try to reach a host again, and the longest one."""


@dataclass
class Backoff:
    """A broken connection, and the attempts to open a new one."""

    reason: str
    since: float
    tries: int = 0
    in_progress: bool = False
    next_try_at: float = field(default_factory=time.monotonic)
    delay_s: float = MIN_BACKOFF_S

    def on_failure(self, reason: str) -> None:
        """Wait longer before the next attempt."""
        self.reason = reason
        self.next_try_at = time.monotonic() + self.delay_s * random.uniform(0.5, 1.0)  # noqa: S311
        self.delay_s = min(MAX_BACKOFF_S, 2 * self.delay_s)
        self.tries += 1
        self.in_progress = False


class Reconnector:
    """Opens new connections, each in its own thread, and reports "reconnected" to the inbox."""

    def __init__(self, connector: Connector, inbox: Inbox) -> None:
        self._connector, self._inbox = connector, inbox
        self._login_slots = threading.BoundedSemaphore(MAX_CONCURRENT_LOGINS)

    def reconnect_if_due(self, node: Node, backoff: Backoff | None, now: float) -> None:
        """Try to reach a node again, if it is time."""
        if backoff is not None and not backoff.in_progress and now >= backoff.next_try_at:
            backoff.in_progress = True
            work = functools.partial(self._reconnect, node, backoff)
            threading.Thread(target=work, daemon=True, name="reopen").start()

    def _reconnect(self, node: Node, backoff: Backoff) -> None:
        try:
            with self._login_slots:
                session = self._connector.open(node, self._inbox)
        except NotReady as error:
            backoff.on_failure(error.problems[0].message)
        except Exception as error:  # noqa: BLE001 (whatever it is, the next try may do better)
            backoff.on_failure(f"{type(error).__name__}: {error}")
        else:
            self._inbox.put((session, Frame("reconnected")))
