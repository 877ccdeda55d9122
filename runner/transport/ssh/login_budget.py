"""Login budget: how many logins at one sshd are in progress at once, and how often one is tried.

An sshd drops connections at random while ten or more logins are in progress (MaxStartups
10:30:100). All hosts behind one ProxyCommand log in at the same bastion.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from runner.transport.ssh.deadline import RefusedForNow

MAX_LOGINS = 8
PAUSE_SHARES = (0.1, 0.5)
"""The pauses before the second and the third try, before jitter, as shares of the timeout."""

MAX_WAIT_S = 300.0
"""No login waits longer than this for those before it."""

T = TypeVar("T")


class LoginBudget:
    """The logins at one sshd."""

    def __init__(self, timeout_s: float) -> None:
        self._pauses_s = [share * timeout_s for share in PAUSE_SHARES]
        self._free = threading.BoundedSemaphore(MAX_LOGINS)

    def run(self, attempt: Callable[[], T], before_wait: Callable[[], None]) -> T:
        """Return the result of a login; one that raises RefusedForNow is tried again, twice.

        `before_wait` is called before each wait, and may raise as well.
        """
        for pause_s in self._pauses_s:
            before_wait()
            try:
                with self._free:
                    return attempt()
            except RefusedForNow:
                before_wait()
                time.sleep(pause_s * random.uniform(0.5, 1.5))  # noqa: S311
        before_wait()
        with self._free:
            return attempt()
