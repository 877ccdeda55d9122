"""Document: the last version of one live page, built while somebody looks at it.

A version is built once and shared by all viewers; how often depends on what one costs.
"""

from __future__ import annotations

import functools
import gzip
import json
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from runner.core.dataclass import dataclass
from runner.core.errors import RunnerError

LOOK_S = 1.0
"""The least time between two looks at what a page is made of."""

MAX_DUTY = 0.2
"""The share of time that looks and builds may take, for each page."""

VIEWED_S = 60.0
"""A page without an event stream counts as viewed for this long after a request."""

STALE_S, FRESH_TIMEOUT_S = 5.0, 5.0
"""A version that was looked at so long ago is looked at again first, for at most this long."""

FIRST_TIMEOUT_S = 60.0
GZIP_LEVEL = 4


class Source(Protocol):
    """What a page is made of."""

    def fingerprint(self) -> object:
        """Return what is different once the data may be."""

    def data(self) -> Mapping[str, Any]:
        """Return the data, as JSON types."""

    def page(self, data: Mapping[str, Any]) -> str:
        """Return the page with the data."""


@dataclass(frozen=True)
class Status:
    """How up to date a page is; `fresh_at` is when its hosts were last heard, None if never."""

    text: str = ""  # one sentence, "" while all is well
    fresh_at: float | None = None  # in seconds since 1970
    ended: bool = False  # nothing will change any more


class Content:
    """Bytes, and the same compressed, which is done at most once."""

    def __init__(self, plain: bytes) -> None:
        self.plain = plain
        self._lock = threading.Lock()

    def encoded(self, *, compressed: bool) -> bytes:
        """Return them as they are sent."""
        if not compressed:
            return self.plain
        with self._lock:
            return self._compressed

    @functools.cached_property
    def _compressed(self) -> bytes:
        return gzip.compress(self.plain, GZIP_LEVEL, mtime=0)


@dataclass(frozen=True)
class Version:
    """One version of a document."""

    number: int
    data: Content
    page: Content


class Document:
    """A page that follows its source while it is viewed.

    `on_change` is called when there is another version or status; `wake` when a build is due now.
    """

    def __init__(self, source: Source, clock: Callable[[], float] = time.monotonic) -> None:
        self.on_change: Callable[[], None] = lambda: None
        self.wake: Callable[[], None] = lambda: None
        self.problem = ""  # why there is no version
        self.stream_count = 0
        self._source, self._clock = source, clock
        self._version: Version | None = None
        self._status = Status()
        self._fingerprint: object = None
        self._viewed_at = self._looked_at = -float("inf")
        self._next_look = 0.0
        self._changed = threading.Condition()

    @property
    def status(self) -> Status:
        """How up to date it is."""
        return self._status

    @status.setter
    def status(self, status: Status) -> None:
        is_news = (status.text, status.ended) != (self._status.text, self._status.ended)
        self._status = status
        if is_news:
            self.on_change()

    def report(self, status: Status) -> None:
        """Take a status that may come with new data: look for them, too."""
        self.status = status
        self.wake()

    @property
    def is_viewed(self) -> bool:
        """Whether anybody looks at it."""
        return bool(self.stream_count) or self.unviewed_s < VIEWED_S

    @property
    def unviewed_s(self) -> float:
        """Seconds since somebody last looked at it."""
        return 0.0 if self.stream_count else self._clock() - self._viewed_at

    def touch(self) -> None:
        """Note that somebody looks at it now."""
        self._viewed_at = self._clock()

    def message(self) -> bytes:
        """Return the event that tells viewers which version there is, and how fresh it is."""
        number = self._version.number if self._version else 0
        status = self._status
        said = {"version": number, "note": status.text, "ended": status.ended}
        return b"data: " + json.dumps({**said, "fresh_at": status.fresh_at}).encode() + b"\n\n"

    def version(self) -> Version | None:
        """Return the version of now; None if there is none in time, see `problem`."""
        self.touch()
        with self._changed:
            if self._clock() - self._looked_at > STALE_S:
                before, self._next_look = self._looked_at, 0.0
                self.wake()
                timeout_s = FRESH_TIMEOUT_S if self._version else FIRST_TIMEOUT_S
                self._changed.wait_for(lambda: self._looked_at > before, timeout_s)
            return self._version

    def refresh(self) -> None:
        """Look at the source, and build a version, if both are due."""
        began = self._clock()
        if not self.is_viewed or began < self._next_look:
            return
        version, problem = self._version, ""
        try:
            fingerprint = self._source.fingerprint()
            if version is None or fingerprint != self._fingerprint:
                version = self._build(version.number + 1 if version else 1)
                self._fingerprint = fingerprint
        except RunnerError as error:
            problem = str(error)
        except Exception as error:  # noqa: BLE001 (a page that cannot be built ends no other)
            problem = f"{type(error).__name__}: {error}"
        ended = self._clock()
        with self._changed:
            is_new = version is not self._version
            self._version, self.problem, self._looked_at = version, problem, ended
            self._next_look = ended + max(LOOK_S, (ended - began) * (1 / MAX_DUTY - 1))
            self._changed.notify_all()
        if is_new:
            self.on_change()

    def _build(self, number: int) -> Version:
        data = self._source.data()
        encoded = json.dumps(data, separators=(",", ":"), allow_nan=False).encode()
        return Version(number, Content(encoded), Content(self._source.page(data).encode()))


class Builder(threading.Thread):
    """The thread that builds the versions of all documents, one after the other."""

    def __init__(self) -> None:
        super().__init__(daemon=True, name="pages")
        self.documents: Callable[[], list[Document]] = list
        self._due, self._ended = threading.Event(), False

    def wake(self) -> None:
        """Look at once."""
        self._due.set()

    def close(self) -> None:
        """End the thread."""
        self._ended = True
        self._due.set()

    def run(self) -> None:
        """Refresh documents until it is closed."""
        while not self._ended:
            for document in self.documents():
                document.refresh()
            self._due.wait(LOOK_S)
            self._due.clear()
