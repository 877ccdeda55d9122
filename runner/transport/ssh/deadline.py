"""Work that may hang, done so that whoever waits for it never does."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

SLACK_S = 0.5
"""Where a library has a deadline of its own, one of the two is this much later, so that the
better explanation comes first."""

T = TypeVar("T")


class LoginFailure(Exception):
    """A step of a log-in went wrong, told for the person who has to cure it.

    Attributes:
        message: One sentence.
        hint: What to type or set; may have several lines.
    """

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message, hint)
        self.message = message
        self.hint = hint


class ConnectionLost(LoginFailure):
    """The connection is of no use any more; nothing was started over it."""


class DeadlineTask(Generic[T]):
    """A piece of work in a thread of its own, given up when one of its steps takes too long.

    Name look-ups and some calls of paramiko wait without a deadline, and a thread cannot be
    interrupted; but it can be left behind. What a thread left behind still brings is discarded.
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
        self,
        seconds: float,
        timeout_failure: LoginFailure,
        cancel: Callable[[], None] | None = None,
    ) -> None:
        """Begin the next step; called by the work itself.

        Args:
            seconds: How long it may take.
            timeout_failure: The failure to report if it takes longer.
            cancel: What then lets go of the thread; may block.
        """
        with self._changed:
            if self._error is not None:
                raise self._error
            self._deadline = time.monotonic() + seconds
            self._timeout_failure, self._cancel = timeout_failure, cancel
            self._changed.notify_all()

    def result(self) -> T:
        """Wait for the work, at most until its current step is overdue; may be called by many."""
        with self._changed:
            while self._ended_at is None:
                remaining_s = None if self._deadline is None else self._deadline - time.monotonic()
                if remaining_s is not None and remaining_s <= 0:
                    self._expire()
                    break
                self._changed.wait(remaining_s)
            if isinstance(self._error, LoginFailure):
                raise type(self._error)(self._error.message, self._error.hint)
            if self._error is not None:
                raise self._error
            return self._result  # type: ignore[return-value]  # the work has ended well

    def seconds_since_failure(self) -> float | None:
        """Return the seconds since the work failed, None if it did not."""
        with self._changed:
            if self._error is None or self._ended_at is None:
                return None
            return time.monotonic() - self._ended_at

    def result_or_none(self) -> T | None:
        """Return the result if the work has ended well."""
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
