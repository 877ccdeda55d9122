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


class Failure(Exception):
    """A step of a log-in went wrong, told for the person who has to cure it.

    Attributes:
        what: One sentence.
        hint: What to type or set; may have several lines.
    """

    def __init__(self, what: str, hint: str = "") -> None:
        super().__init__(what, hint)
        self.what = what
        self.hint = hint


class Lost(Failure):
    """The connection is of no use any more; nothing was started over it."""


class Attempt(Generic[T]):
    """A piece of work in a thread of its own, given up when one of its steps takes too long.

    Name look-ups and some calls of paramiko wait without a deadline, and a thread cannot be
    interrupted; but it can be left behind. What a thread left behind still brings is discarded.
    """

    def __init__(self, work: Callable[[Attempt[T]], T], *, discard: Callable[[T], None]) -> None:
        self._changed = threading.Condition()
        self._deadline: float | None = None
        self._late = Failure("took too long")
        self._cancel: Callable[[], None] | None = None
        self._value: T | None = None
        self._error: Exception | None = None
        self._ended: float | None = None
        threading.Thread(target=self._run, args=(work, discard), daemon=True).start()

    def step(self, seconds: float, late: Failure, cancel: Callable[[], None] | None = None) -> None:
        """Begin the next step; called by the work itself.

        Args:
            seconds: How long it may take.
            late: The failure to report if it takes longer.
            cancel: What then lets go of the thread; may block.
        """
        with self._changed:
            if self._error is not None:
                raise self._error
            self._deadline = time.monotonic() + seconds
            self._late, self._cancel = late, cancel
            self._changed.notify_all()

    def result(self) -> T:
        """Wait for the work, at most until its current step is overdue; may be called by many."""
        with self._changed:
            while self._ended is None:
                left = None if self._deadline is None else self._deadline - time.monotonic()
                if left is not None and left <= 0:
                    self._give_up()
                    break
                self._changed.wait(left)
            if isinstance(self._error, Failure):
                raise type(self._error)(self._error.what, self._error.hint)
            if self._error is not None:
                raise self._error
            return self._value  # type: ignore[return-value]  # the work has ended well

    def failed_since(self) -> float | None:
        """Return the seconds since the work failed, None if it did not."""
        with self._changed:
            if self._error is None or self._ended is None:
                return None
            return time.monotonic() - self._ended

    def value(self) -> T | None:
        """Return the result if the work has ended well."""
        with self._changed:
            return self._value

    def _give_up(self) -> None:
        self._error, self._ended = self._late, time.monotonic()
        self._changed.notify_all()
        if self._cancel is not None:
            threading.Thread(target=self._cancel, daemon=True).start()

    def _run(self, work: Callable[[Attempt[T]], T], discard: Callable[[T], None]) -> None:
        value, error = None, None
        try:
            value = work(self)
        except Exception as problem:  # noqa: BLE001 - raised again where it is waited for
            error = problem
        with self._changed:
            in_time = self._ended is None
            if in_time:
                self._value, self._error, self._ended = value, error, time.monotonic()
                self._changed.notify_all()
        if value is not None and not in_time:
            discard(value)
