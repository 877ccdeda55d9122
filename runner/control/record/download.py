"""Bring a run home from its hosts, side by side: records, logs, and what the task left.

It may be cut off anywhere; the next pull goes on where it ended and fetches nothing twice. Enough
is asked for ahead to fill a wire, and no more than may wait here.
"""

from __future__ import annotations

import errno
import json
import time
import zlib
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from runner.control.record.destination import Job, Shelf, jobs_of
from runner.control.rpc.session import Inbox, Session
from runner.control.rpc.wait import listen
from runner.core.errors import Problem
from runner.core.protocol.frames import Frame
from runner.core.protocol.remote_files import KINDS, Found
from runner.core.text import readable

PIECE = 256 << 10
WINDOW, AHEAD = 8 << 20, 256
"""Bytes, and pieces, that one host may have been asked for and not sent."""

ALL_WINDOWS = 256 << 20
LEAST = 4
"""All hosts together; but each so many pieces."""

TRIES = 3
"""How often a file is begun that changes while it is fetched."""

MAX_LIST = 64 << 20
REPORT_S = 0.2
PROBLEMS = 20
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EMFILE, errno.ENFILE)
AGAIN = "pull again: what came is kept, and it goes on from there"


@dataclass
class Pulled:
    """What came of one node.

    Attributes:
        new: How many files and links are here that were not, or have grown.
        there: How many were here before.
        size: Bytes fetched.
        left_out: How many files the host has beyond what one pull may bring.
        notes: What was passed over on the host, and why.
        problems: What could not be had; the first of them.
        failed: How many could not.
        whole: Whether the host was gone through to the end.
    """

    new: int = 0
    there: int = 0
    size: int = 0
    left_out: int = 0
    notes: list[str] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    failed: int = 0
    whole: bool = False

    @property
    def complete(self) -> bool:
        """Whether all there is of this node is here."""
        return self.whole and not self.failed and not self.left_out


def pull(
    sessions: Mapping[str, Session],
    inbox: Inbox,
    run_id: str,
    folder: Path,
    *,
    lost_s: float,
    show: Callable[[str, str], None],
    kinds: Collection[str] = KINDS,
) -> dict[str, Pulled]:
    """Bring home what the hosts have of a run; one host's trouble is no other's.

    Args:
        sessions: The hosts, by node; each has told its facts.
        inbox: Where all sessions put what they hear.
        run_id: The run.
        folder: Its record on this machine; made if it is not there.
        lost_s: How long a host may be silent.
        show: Takes (node, state in a few words) whenever that changes.
        kinds: What to bring, of "record", "log" and "output".

    Returns:
        What came of each node, its problems among it.

    Raises:
        NotReady: The folder cannot be written to, or another pull is doing so.
        Interrupted: By a signal; the next pull goes on from there.
    """
    shelf = Shelf(folder)
    try:
        limit = min(WINDOW, max(LEAST * PIECE, ALL_WINDOWS // max(1, len(sessions))))
        visits = {
            name: _Visit(name, session, shelf, show, limit) for name, session in sessions.items()
        }
        for visit in visits.values():
            visit.start(run_id, kinds)
        listen(
            inbox,
            lambda: {n: each for n, each in sessions.items() if not visits[n].over},
            lost_s,
            lambda name, frame: visits[name].take(frame),
            lambda name, why: visits[name].fail(why),
        )
        return {name: visit.pulled for name, visit in visits.items()}
    finally:
        shelf.close()


@dataclass
class _Run:
    """One beginning of a job: how far it is, or that it is given up."""

    job: Job
    at: int
    dead: bool = False


@dataclass(frozen=True)
class _Ask:
    """One piece that was asked for."""

    run: _Run
    offset: int
    n: int


class _Visit:
    """One host, from its inventory to its last file."""

    def __init__(
        self,
        name: str,
        session: Session,
        shelf: Shelf,
        show: Callable[[str, str], None],
        limit: int,
    ) -> None:
        self.pulled = Pulled()
        self.over = False
        self._name, self._session, self._shelf, self._limit = name, session, shelf, limit
        self._show = show
        self._listing = 0
        self._found: list[Found] = []
        self._jobs: deque[Job] = deque()
        self._next: Iterator[_Ask] = iter(())
        self._asked: dict[int, _Ask] = {}
        self._ahead = 0
        self._total = self._done = 0
        self._next_report = 0.0

    def start(self, run_id: str, kinds: Collection[str]) -> None:
        """Ask what there is."""
        self._about = {"run_id": run_id, "node": self._name}
        self._show(self._name, "listing")
        self._listing = self._session.request("inventory", {**self._about, "kinds": list(kinds)})

    def take(self, frame: Frame) -> None:
        """Take what the host says."""
        try:
            self._heed(frame)
        except (KeyError, TypeError, ValueError, zlib.error) as error:
            self.fail(f"it said what is not to be understood: {error}")

    def fail(self, what: str) -> None:
        """Leave the host."""
        self.over = True
        self.pulled.failed += 1
        self._note(what)
        self._show(self._name, "failed")

    def _heed(self, frame: Frame) -> None:
        number = frame.data.get("id")
        if number == self._listing and frame.kind == "refused":
            self.fail(f"could not say what it has: {frame.data['why']}")
        elif number == self._listing and frame.kind == "listed":
            rows = json.loads(_unpacked(frame.payload, MAX_LIST))
            self._found += [Found.of(row) for row in rows]
        elif number == self._listing and frame.kind == "inventoried":
            self._begin(frame)
        elif number in self._asked and frame.kind in ("fetched", "refused"):
            self._answered(self._asked.pop(number), frame)

    def _begin(self, frame: Frame) -> None:
        """All is listed: fetch it."""
        self.pulled.left_out = int(frame.data["left_out"])
        skipped = [f"{readable(str(path))}: {why}" for path, why in frame.data["skipped"]]
        more = int(frame.data["skips"]) - len(skipped)
        self.pulled.notes = [*skipped, *([f"and {more} more"] if more > 0 else [])]
        self._jobs.extend(jobs_of(self._shelf, self._name, self._found))
        self._found = []
        self._total = sum(job.total for job in self._jobs)
        self._go_on()

    def _answered(self, ask: _Ask, frame: Frame) -> None:
        self._ahead -= ask.n
        if not ask.run.dead:
            if frame.kind == "refused":
                self._give_up(ask.run, str(frame.data["why"]))
            else:
                self._guarded(ask.run, lambda: self._piece(ask, frame))
        self._go_on()

    def _piece(self, ask: _Ask, frame: Frame) -> None:
        """Write one piece into its place.

        Raises:
            ValueError: It is not what was asked for.
            OSError: It cannot be written.
        """
        run, told = ask.run, frame.data
        size, mtime_ns = int(told["size"]), int(told["mtime_ns"])
        if run.job.changed(size, mtime_ns):
            self._begin_again(ask, size, mtime_ns)
            return
        data = _unpacked(frame.payload, ask.n) if told.get("z") else frame.payload
        if len(data) != ask.n or ask.offset != run.at:
            raise ValueError("did not come whole")
        run.job.write(ask.offset, data)
        run.at += len(data)
        self._done += len(data)
        self.pulled.size += len(data)
        if run.at == run.job.total:
            self._finish(run)

    def _begin_again(self, ask: _Ask, size: int, mtime_ns: int) -> None:
        """A file is no longer what it was: fetch it as it is now, if it ever holds still."""
        run = ask.run
        run.dead = True
        later = run.job.again(size, mtime_ns)
        if later is None:
            raise ValueError("became shorter on the host")
        if later.tries >= TRIES:
            raise ValueError("changes while it is fetched")
        self._done -= run.at
        self._total += later.total - run.job.total
        self._jobs.appendleft(later)

    def _finish(self, run: _Run) -> None:
        run.job.finish()
        self.pulled.new += 1

    def _go_on(self) -> None:
        """Ask for as much as may be on its way; with nothing left to ask for, be done."""
        while not self.over and len(self._asked) < AHEAD and self._ahead < self._limit:
            ask = next(self._next, None)
            if ask is None:
                if not self._jobs:
                    break
                self._next = self._enter(self._jobs.popleft())
                continue
            source = ask.run.job.source
            what = {"of": source.kind, "path": source.path}
            where = {"offset": ask.offset, "n": ask.n, "z": self._session.node.transport != "local"}
            number = self._session.request("fetch", {**self._about, **what, **where})
            self._asked[number] = ask
            self._ahead += ask.n
        if not self.over and not self._asked:
            self.over = self.pulled.whole = True
            self._show(self._name, "done" if self.pulled.complete else "in part")
        self._report()

    def _enter(self, job: Job) -> Iterator[_Ask]:
        """Begin a job; return what is to be asked for."""
        job.tries += 1
        run = _Run(job, 0)
        start: int | None = None

        def begin() -> None:
            nonlocal start
            start = job.begin()
            if start is None:
                self.pulled.there += 1
                self._done += job.total
            elif start == job.total:
                self._finish(run)

        self._guarded(run, begin)
        if start is None or start == job.total or run.dead:
            return iter(())
        run.at = start
        self._done += start
        return _asks(run)

    def _guarded(self, run: _Run, act: Callable[[], None]) -> None:
        """Do something for a job; what goes wrong is its end, or with a full disk that of all."""
        try:
            act()
        except OSError as error:
            why = error.strerror or str(error)
            if error.errno in FULL:
                self.fail(f"cannot write {_shown(run.job)} here: {why}")
            else:
                self._give_up(run, f"cannot be written here: {why}")
        except ValueError as error:
            self._give_up(run, str(error))

    def _give_up(self, run: _Run, why: str) -> None:
        """Leave one file, and go on with the others."""
        run.dead = True
        self.pulled.failed += 1
        self._note(f"{_shown(run.job)}: {why}")

    def _note(self, what: str) -> None:
        if len(self.pulled.problems) < PROBLEMS or self.over:
            self.pulled.problems.append(Problem(self._name, what, AGAIN))

    def _report(self) -> None:
        now = time.monotonic()
        if not self.over and now >= self._next_report:
            self._next_report = now + REPORT_S
            self._show(self._name, f"{round(100 * self._done / (self._total or 1))} %")


def _asks(run: _Run) -> Iterator[_Ask]:
    """Yield the pieces a job needs, until it is given up."""
    total = run.job.total
    for offset in range(run.at, total, PIECE):
        if run.dead:
            return
        yield _Ask(run, offset, min(PIECE, total - offset))


def _shown(job: Job) -> str:
    return readable("/".join(job.place))


def _unpacked(data: bytes, most: int) -> bytes:
    """Undo compression.

    Raises:
        ValueError: It is more than it may be.
    """
    unpacking = zlib.decompressobj()
    whole = unpacking.decompress(data, most + 1)
    if len(whole) > most or not unpacking.eof:
        raise ValueError("more came than there is")
    return whole
