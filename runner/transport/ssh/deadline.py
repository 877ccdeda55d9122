"""Deadlines for blocking work, in threads that can be abandoned; and how a login can fail."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from runner.core.errors import Shared

SLACK_S = 0.5
"""The lead of one deadline over a library's own, so that the better message comes first."""

T = TypeVar("T")


class LoginFailure(Exception):
    """A step of a login failed; the hint is a command to type or a key to set, line by line."""

    def __init__(self, message: str, hint: str = "", shared: Shared | None = None) -> None:
        super().__init__(message, hint)
        self.message = message
        self.hint = hint
        self.shared = shared


class ConnectionLost(LoginFailure):
    """The connection is dead; nothing was started over it."""


class RefusedForNow(LoginFailure):
    """An sshd is up and turned this login away before it read a key; a later one may succeed."""


class DeadlineTask(Generic[T]):
    """Work in a thread of its own, abandoned when one of its steps takes too long.

    Name lookups and some calls of paramiko have no deadline, and a thread cannot be interrupted,
    but it can be abandoned. The result of an abandoned thread is discarded.
    """

    def __init__(
        self, work: Callable[[DeadlineTask[T]], T], *, discard: Callable[[T], None]
    ) -> None:
        self._changed = threading.Condition()
        self._deadline: float | None = None
        self._timeout_failure = LoginFailure("took too long")
        self._cancel: Callable[[], None] | None = None
        self._result: T | None = None
        self._error: Exception | None = None
        self._ended_at: float | None = None
        threading.Thread(target=self._run, args=(work, discard), daemon=True).start()

    def begin_step(
        self, seconds: float, too_late: LoginFailure, cancel: Callable[[], None] | None = None
    ) -> None:
        """Begin the next step; called by the work itself.

        After that many seconds, it fails with `too_late`, and `cancel`, which may block, is called
        to release the thread.
        """
        with self._changed:
            if self._error is not None:
                raise self._error
            self._deadline = time.monotonic() + seconds
            self._timeout_failure, self._cancel = too_late, cancel
            self._changed.notify_all()

    def result(self) -> T:
        """Wait for the work until its current step is overdue; may be called by many threads."""
        with self._changed:
            while self._ended_at is None:
                remaining_s = None if self._deadline is None else self._deadline - time.monotonic()
                if remaining_s is not None and remaining_s <= 0:
                    self._expire()
                    break
                self._changed.wait(remaining_s)
            if isinstance(self._error, LoginFailure):
                failure = self._error
                raise type(failure)(failure.message, failure.hint, failure.shared)
            if self._error is not None:
                raise self._error
            return self._result  # type: ignore[return-value]  # the work has succeeded

    def seconds_since_failure(self) -> float | None:
        """Return the seconds since the work failed; None if it did not."""
        with self._changed:
            if self._error is None or self._ended_at is None:
                return None
            return time.monotonic() - self._ended_at

    def result_or_none(self) -> T | None:
        """Return the result if the work has succeeded."""
        with self._changed:
            return self._result

    def _expire(self) -> None:
        self._error, self._ended_at = self._timeout_failure, time.monotonic()
        self._changed.notify_all()
        if self._cancel is not None:
            threading.Thread(target=self._cancel, daemon=True).start()

    def _run(self, work: Callable[[DeadlineTask[T]], T], discard: Callable[[T], None]) -> None:
        result, error = None, None
        try:
            result = work(self)
        except Exception as problem:  # noqa: BLE001 - raised again where it is waited for
            error = problem
        with self._changed:
            in_time = self._ended_at is None
            if in_time:
                self._result, self._error, self._ended_at = result, error, time.monotonic()
                self._changed.notify_all()
        if result is not None and not in_time:
            discard(result)
