"""The ranks on this host, as their shims' records tell of them."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from typing import Any, Callable, Dict, NamedTuple, Optional, Set, Tuple

from runner.core.codec import decode
from runner.core.model.order import Order
from runner.core.outcome.exits import describe_exit
from runner.core.outcome.known_failures import of_another
from runner.core.outcome.tracebacks import raised, unmarked
from runner.core.protocol.events import RankExited, RankStarted
from runner.core.protocol.paths import RunFolder, rank_source
from runner.host.process import procfs
from runner.host.ranks import exit_cause
from runner.host.storage.run_folder import Journal, rank_records

WORDS = 64 << 10
"""Bytes of a log, at its end, in which its last words are looked for."""

LAST_S = 60.0
"""What ended a rank was said no longer before."""


class RankProcess(NamedTuple):
    """One start of a rank: its own program, and the shim above it."""

    pid: int
    shim: int


class Ranks:
    """Every start of every rank of an attempt here, put on record as it is found.

    Args:
        folder: Of the run on this host.
        order: What its program was told to start.
        journal: Where that is put on record.
        failed: Told of a rank that failed, in words, and when by our monotonic clock; not where
            torchrun may start it anew, since it ends itself if it does not.
    """

    def __init__(
        self,
        folder: RunFolder,
        order: Order,
        journal: Journal,
        failed: Callable[[str, float], None],
    ) -> None:
        self._folder, self._order, self._journal = folder, order, journal
        self._tell = failed
        self._seen: Set[str] = set()
        self._started: Dict[Tuple[int, int], RankProcess] = {}
        self._exited: Set[Tuple[int, int]] = set()
        self._begun_at: Dict[int, int] = {}  # where its log of errors was when a rank began anew
        self._raised_at: Optional[float] = None
        self._noticed: Set[float] = set()  # when ranks ended that another had left
        self._member_of = 0
        self._renewed: Set[int] = set()
        self._renewed_by = float("inf")
        if order.again:  # what was recorded before was told before
            rank_records(folder.attempt(order.attempt), self._seen)

    @property
    def pids(self) -> Set[int]:
        """Those that live, as far as nobody recorded their end."""
        return {each.pid for key, each in self._started.items() if key not in self._exited}

    @property
    def shims(self) -> Set[int]:
        """The shims of all there were."""
        return {each.shim for each in self._started.values()}

    def note(self, *, stopping: bool) -> None:
        """Record who started and who ended; in a stop nobody asks what they died of."""
        for kind, rank, data in rank_records(self._folder.attempt(self._order.attempt), self._seen):
            key = (rank, int(data["start"]))
            if kind == "start":
                body = decode(RankStarted, {**data, "rank": rank})
                self._started[key] = RankProcess(body.pid, int(data["shim"]))
                if body.start > 1:  # what any of them raised before was mended
                    self._raised_at = None
                    with contextlib.suppress(OSError):
                        self._begun_at[rank] = os.path.getsize(self._errors(rank))
                self._member_of = body.nodes
                self._journal.append(body, mono=float(data["mono"]), wall=float(data["wall"]))
                continue
            self._exited.add(key)
            pid = self._started[key].pid if key in self._started else 0
            error = "" if stopping else exit_cause.seen(pid, data)
            said = self._last_words(rank, float(data["wall"])) if data["code"] != 0 else ""
            self._journal.append_exit(rank, data, error, said)
            if data["code"] != 0:
                self._blame(said, data, stopping=stopping)
                how = error or describe_exit(data["code"], data["signal"])
                self._failed(rank, how, float(data["mono"]))

    def note_unseen(self) -> None:
        """Record those whose shim is gone without a word: nobody saw how they ended."""
        alive = procfs.descendants(os.getpid())
        for (rank, start), process in sorted(self._started.items()):
            if (rank, start) not in self._exited and process.shim not in alive:
                self._exited.add((rank, start))
                error = exit_cause.unseen(self._folder.root)
                self._journal.append(RankExited(rank, error=error, start=start))
                self._failed(rank, "ended unseen", time.monotonic())

    def to_blame(self, failed_at: Optional[float]) -> Optional[float]:
        """Return when the first failed here of itself, if any did; something did at `failed_at`."""
        moments = (self._raised_at, failed_at)
        own = [at for at in moments if at is not None and at not in self._noticed]
        return min(own, default=None)

    def _errors(self, rank: int) -> str:
        return self._folder.stream(self._order.attempt, rank_source(rank), "err")

    def _last_words(self, rank: int, ended: float) -> str:
        try:
            with open(self._errors(rank), "rb") as file:
                known = os.fstat(file.fileno())
                if known.st_mtime < ended - LAST_S:  # it went on for long after that
                    return ""
                file.seek(max(self._begun_at.get(rank, 0), known.st_size - WORDS))
                text = file.read(WORDS).decode(errors="replace")
        except OSError:
            return ""
        return raised(unmarked(text.splitlines()))

    def _blame(self, said: str, data: Dict[str, Any], *, stopping: bool) -> None:
        """Note who raised, and who only noticed; see `verdict` for why they are told apart."""
        when, signum = float(data["mono"]), data["signal"]
        if of_another(said):
            if signum in (None, signal.SIGABRT):
                self._noticed.add(when)
        elif said and self._raised_at is None and (signum or not stopping):
            self._raised_at = when

    def _failed(self, rank: int, how: str, when: float) -> None:
        if not self._order.restarts:
            self._tell(f"rank {rank} on {self._order.node} {how}", when)

    def renew(self, nodes: int) -> None:
        """End those of a membership of more nodes than are left: torch starts them anew.

        They may wait for the others for long; those of a later membership are left alone.
        """
        if not nodes or self._member_of > nodes:
            self._renewed = procfs.send(self.pids, signal.SIGTERM)
            self._renewed_by = time.monotonic() + self._order.grace_s

    def end_the_renewed(self) -> None:
        """Kill those of them that take longer than the grace."""
        if time.monotonic() >= self._renewed_by:
            self._renewed_by = float("inf")
            procfs.send(self._renewed & self.pids, signal.SIGKILL)
