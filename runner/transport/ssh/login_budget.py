"""Login budget: a counting semaphore for the logins at one sshd, retried with backoff and jitter.

An sshd drops connections at random while ten or more logins are in progress (MaxStartups
10:30:100), and one of OpenSSH 9.8 and later turns an address away that it denied three logins. All
hosts behind one ProxyCommand log in at the same bastion.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from runner.transport.ssh.deadline import BastionDenied, LoginDenied, RefusedForNow

MAX_LOGINS = 8
"""Logins in progress at one sshd."""

FIRST_LOGINS = 2
"""Logins in progress until the sshd has let one in: if it denies these, this address is not yet
turned away, which begins with the third (OpenSSH's PerSourcePenalties: 5 s each, from 15 s on)."""

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
        self._limit = FIRST_LOGINS
        self._refused_since: float | None = None  # the first refusal after an answer
        self._denied: tuple[float, BastionDenied] | None = None  # when it ends to count, and it
        self._has_let_in, self._denial_count = False, 0  # since it has let somebody in

    def run(self, attempt: Callable[[], T], before_wait: Callable[[], None]) -> T:
        """Return the result of an attempt at a login that is made with a permit.

        Attempts that raise RefusedForNow are repeated until the sshd has refused every login for
        `patience_s` seconds; then that is raised, as is whatever else an attempt raises. One that
        ends otherwise, such as by a timeout, does not show that the sshd lets anybody in.
        BastionDenied is raised for every login of the next `patience_s` seconds without an attempt.
        `before_wait` is called before each wait, and may raise as well.
        """
        permit, end = object(), time.monotonic() + MAX_WAIT_S
        pause_s = MIN_PAUSE_S
        try:
            while True:
                before_wait()
                self._acquire(permit)
                try:
                    result = attempt()
                except BastionDenied as denial:
                    self._on_denial(denial)
                    raise
                except LoginDenied:
                    self._on_answer()
                    raise
                except RefusedForNow:
                    remaining_s = min(end, self._patience_end()) - time.monotonic()
                    if remaining_s <= 0:
                        raise
                else:
                    self._on_answer()
                    return result
                before_wait()
                time.sleep(min(remaining_s, pause_s * random.uniform(0.5, 1.5)))  # noqa: S311
                pause_s = min(MAX_PAUSE_S, 2 * pause_s)
        finally:
            self._release(permit)

    def _acquire(self, permit: object) -> None:
        with self._changed:
            if not self._permits:
                self._refused_since = None
            self._raise_denial()
            while permit not in self._permits and len(self._permits) >= self._limit:
                oldest = min(self._permits, key=self._permits.__getitem__)
                remaining_s = self._permits[oldest] - time.monotonic()
                if remaining_s <= 0:
                    del self._permits[oldest]
                    self._limit = min(MAX_LOGINS, 2 * self._limit)
                else:
                    self._changed.wait(remaining_s)
                    self._raise_denial()
            self._permits[permit] = time.monotonic() + PERMIT_S

    def _raise_denial(self) -> None:
        if self._denied and time.monotonic() < self._denied[0]:
            raise BastionDenied(*self._denied[1].args)

    def _on_denial(self, denial: BastionDenied) -> None:
        with self._changed:
            self._denial_count += 1
            if self._has_let_in and self._denial_count < FIRST_LOGINS:
                return  # it may be that one login's own, such as of an ssh agent that is busy
            self._denied = time.monotonic() + self._patience_s, denial
            self._limit = FIRST_LOGINS
            self._changed.notify_all()

    def _patience_end(self) -> float:
        with self._changed:
            if self._refused_since is None:
                self._refused_since = time.monotonic()
            return self._refused_since + self._patience_s

    def _on_answer(self) -> None:
        with self._changed:
            self._refused_since = self._denied = None
            self._has_let_in, self._denial_count = True, 0
            if self._limit < MAX_LOGINS:
                self._limit = MAX_LOGINS
                self._changed.notify_all()

    def _release(self, permit: object) -> None:
        with self._changed:
            self._permits.pop(permit, None)
            self._changed.notify()
