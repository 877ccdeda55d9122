"""Login budget: a counting semaphore for the logins at one sshd, retried with backoff and jitter.

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
"""Logins in progress at one sshd."""

PERMIT_S = 2.0
"""A permit expires so long after the begin of its attempt: the bastion has let the login in by
then, and nobody has to wait for a host behind it that does not answer."""

MIN_PAUSE_S, MAX_PAUSE_S = 0.1, 2.0
"""The pause before the second attempt, and the longest pause, before jitter."""

MAX_WAIT_S = 300.0
"""No login waits longer than this for its permits, and none is retried after it."""

T = TypeVar("T")


class LoginBudget:
    """Permits for the logins at one sshd. A login that is refused for now keeps its permit."""

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._changed = threading.Condition()
        self._permits: dict[object, float] = {}  # each with when it expires (monotonic)
        self._progress_at = 0.0  # when a login was last not refused, or the first one began

    def run(self, attempt: Callable[[], T], before_wait: Callable[[], None]) -> T:
        """Return the result of an attempt at a login that is made with a permit.

        Attempts that raise RefusedForNow are repeated until the sshd has refused every login for
        `patience_s` seconds; then that is raised, as is whatever else an attempt raises.
        `before_wait` is called before each wait, and may raise as well.
        """
        permit, end = object(), time.monotonic() + MAX_WAIT_S
        pause_s, is_refused = MIN_PAUSE_S, False
        try:
            while True:
                before_wait()
                self._acquire(permit)
                try:
                    is_refused = False
                    return attempt()
                except RefusedForNow:
                    is_refused = True
                    deadline = min(end, self._progress_at + self._patience_s)
                    remaining_s = deadline - time.monotonic()
                    if remaining_s <= 0:
                        raise
                before_wait()
                time.sleep(min(remaining_s, pause_s * random.uniform(0.5, 1.5)))  # noqa: S311
                pause_s = min(MAX_PAUSE_S, 2 * pause_s)
        finally:
            self._release(permit, is_refused=is_refused)

    def _acquire(self, permit: object) -> None:
        with self._changed:
            if not self._permits:
                self._progress_at = time.monotonic()
            while permit not in self._permits and len(self._permits) >= MAX_LOGINS:
                oldest = min(self._permits, key=self._permits.__getitem__)
                remaining_s = self._permits[oldest] - time.monotonic()
                if remaining_s <= 0:
                    del self._permits[oldest]
                else:
                    self._changed.wait(remaining_s)
            self._permits[permit] = time.monotonic() + PERMIT_S

    def _release(self, permit: object, *, is_refused: bool) -> None:
        with self._changed:
            self._permits.pop(permit, None)
            if not is_refused:
                self._progress_at = time.monotonic()
            self._changed.notify()
