"""Push one release to every host that lacks it: read once, sent side by side.

Each host is offered the manifest and says what it lacks; one stream of just those contents
follows. Nobody gets further ahead than `WINDOW` bytes, so that what waits to be sent is bounded
by that and not by the number of hosts.
"""

from __future__ import annotations

import queue
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from runner.control.code.snapshot import Snapshot
from runner.control.rpc.session import Inbox, Session
from runner.core.errors import Interrupted, NotReady, Problem
from runner.core.model.release import distinct
from runner.core.model.spec import Spec
from runner.core.protocol.frames import Frame

WINDOW = 2 << 20
"""Bytes queued for one host that make all wait for it."""

PIECE = 256 << 10
SAMPLE = 16 << 10
PING_S, REPORT_S = 2.0, 0.2
IDLE_S, WAIT_S, SLICE_S = 0.05, 0.002, 0.02
ROOM = (
    "python -m runner clean --older-than 1h removes what ended runs left, deploy.keep=0 all older "
    "releases\nor set cluster.workdir to another disk"
)
AGAIN = "what it had is whole; see if it is up (ssh, ping), and start again"
WORTH = 0.9
"""A piece is sent compressed if that makes it smaller than this part of itself."""


@dataclass
class Receiver:
    """One host while the release is pushed to it.

    Attributes:
        session: The wire to it.
        lacks: The contents it asked for; None before it did.
        state: offered, waiting, receiving, storing, stored; shared (somebody else of the same
            disk receives), failed.
        store: Which store it keeps releases in; hosts that share a disk have the same.
        again: Whether it was offered the release once more, after a host of its store had it.
        queued: Bytes of the stream queued for it so far, of `total`.
        total: Bytes it lacks.
        sent: What `queued` is on the wire, compressed.
        new: Whether the release was not there before.
        problem: Why it has no release.
    """

    session: Session
    lacks: frozenset[str] | None = None
    state: str = "offered"
    store: str = ""
    again: bool = False
    queued: int = 0
    total: int = 0
    sent: int = 0
    new: bool = False
    problem: Problem | None = None

    @property
    def percent(self) -> int:
        """How much of what it lacks it has taken."""
        return round(100 * max(0, self.queued - self.session.unsent) / (self.total or 1))

    @property
    def over(self) -> bool:
        """Whether nothing more is to come from it."""
        return self.state in ("stored", "failed")


class Deployment:
    """One release on its way to some hosts."""

    def __init__(
        self,
        spec: Spec,
        snapshot: Snapshot,
        sessions: Mapping[str, Session],
        inbox: Inbox,
        show: Callable[[str, str], None],
        beside: Iterable[Session] = (),
    ) -> None:
        """Prepare it.

        Args:
            spec: Its `deploy.keep` and `lost_s`.
            snapshot: The release.
            sessions: The hosts to push to, by node.
            inbox: Where all sessions put what they hear.
            show: Takes (node, state in a few words) whenever that changes.
            beside: Hosts that need no push, but would take our silence for our end.
        """
        self._beside = tuple(beside)
        self._spec, self._snapshot, self._inbox, self._show = spec, snapshot, inbox, show
        self.receivers = {name: Receiver(session) for name, session in sessions.items()}
        self._contents = distinct(snapshot.manifest)
        self._bounds = {"keep": spec.deploy.keep}
        self._offer = zlib.compress(snapshot.encoded, 1)
        self._offer_head = Frame("manifest", {"id": 0, **self._bounds}, self._offer).head()
        self._lacks: dict[tuple[int, ...], frozenset[str]] = {}
        self._stream: Iterator[int] | None = None
        self._next_ping = self._next_report = 0.0

    def run(self) -> None:
        """Return when every host has the release.

        Raises:
            NotReady: With the problem of every host that has not.
            Interrupted: The user asked us to end.
        """
        for receiver in self._all:
            receiver.session.share(self._offer_head, self._offer)
        while not all(receiver.over for receiver in self._all):
            self._take_next(IDLE_S if self._stream is None else 0.0 if self._go_on() else WAIT_S)
            self._look_after()
            self._begin_stream()
            self._report()
        problems = [each.problem for each in self.receivers.values() if each.problem]
        if problems:
            raise NotReady(problems)

    @property
    def _all(self) -> Iterable[Receiver]:
        return self.receivers.values()

    def _take_next(self, patience_s: float) -> None:
        try:
            session, frame = self._inbox.get(timeout=patience_s)
        except queue.Empty:
            return
        if session is None:
            raise Interrupted(128 + frame.data["signal"])
        receiver = self.receivers.get(session.node.name)
        if receiver is None or receiver.over:
            return
        if frame.kind == "lacks":
            files = self._snapshot.manifest.files
            missing = tuple(frame.data["missing"])  # many hosts lack the same
            if missing not in self._lacks:
                self._lacks[missing] = frozenset(files[index].digest for index in missing)
            receiver.lacks = self._lacks[missing]
            # A name that was copied with a disk's image is no sign of one disk.
            own = receiver.again or not frame.data["store"]
            receiver.store = session.node.name if own else str(frame.data["store"])
            receiver.state = "waiting"
        elif frame.kind == "stored":
            receiver.state, receiver.new = "stored", bool(frame.data["new"])
            self._show(session.node.name, "has the code")
            self._offer_again(receiver.store, stored=True)
        elif frame.kind == "refused":
            self._fail(receiver, f"could not store the code: {frame.data['why']}")
        elif frame.kind == "closed":
            why = f"the connection to it broke while the code was pushed: {frame.data['reason']}"
            self._fail(receiver, why)

    def _fail(self, receiver: Receiver, what: str) -> None:
        name = receiver.session.node.name
        full = any(each in what for each in ("No space left", "quota exceeded"))
        hint = ROOM if full else AGAIN
        receiver.state, receiver.problem = "failed", Problem(name, what, hint)
        self._show(name, "failed")
        self._offer_again(receiver.store, stored=False)

    def _offer_again(self, store: str, *, stored: bool) -> None:
        """One host of a shared disk is done: the others see whether it did it for all."""
        for receiver in self._all:
            if store and receiver.store == store and receiver.state == "shared":
                receiver.state, receiver.again = "offered", stored
                receiver.session.share(self._offer_head, self._offer)

    def _look_after(self) -> None:
        now = time.monotonic()
        if now >= self._next_ping:
            self._next_ping = now + PING_S
            for session in (*(each.session for each in self._all), *self._beside):
                if not session.closed:
                    session.request("ping")
        for receiver in self._all:
            silence = receiver.session.silence
            if not receiver.over and silence > self._spec.lost_s:
                receiver.session.close()
                self._fail(receiver, f"nothing was heard from it for {silence:.0f} s")

    def _begin_stream(self) -> None:
        """Once all have said what they lack, stream it, to one host of each shared disk."""
        busy = ("offered", "receiving", "storing")
        if any(receiver.state in busy for receiver in self._all):
            return
        leaders: dict[str, Receiver] = {}
        for name, receiver in self.receivers.items():
            if receiver.state != "waiting":
                continue
            if leaders.setdefault(receiver.store, receiver) is receiver:
                receiver.state = "receiving"
            else:
                receiver.state = "shared"
                receiver.session.request("drop")
                self._show(name, "shares a disk")
        if leaders:
            self._stream = self._read_for(list(leaders.values()))

    def _go_on(self) -> bool:
        """Stream a little; False when that has to wait for a host, or there is nothing to do."""
        until = time.monotonic() + SLICE_S
        while self._stream is not None and time.monotonic() < until:
            if any(r.state == "receiving" and r.session.unsent > WINDOW for r in self._all):
                return False
            if next(self._stream, None) is None:
                self._stream = None
        return self._stream is not None

    def _read_for(self, leaders: list[Receiver]) -> Iterator[int]:
        """Read every content that some host lacks, once, and queue it; yield at each chunk."""
        groups = [
            _Group(lacks, [each for each in leaders if each.lacks == lacks])
            for lacks in {each.lacks for each in leaders if each.lacks is not None}
        ]
        for receiver in leaders:
            receiver.queued = 0
        for group in groups:
            group.total = sum(file.size for file in self._contents if file.digest in group.lacks)
        for file in self._contents:
            takers = [group for group in groups if file.digest in group.lacks]
            for chunk in self._snapshot.read(file) if takers else ():
                for group in takers:
                    group.add(chunk)
                yield len(chunk)
        for group in groups:
            group.flush()
            for receiver in group.receivers:
                if receiver.state == "receiving":
                    receiver.state = "storing"
                    receiver.session.request("finish", self._bounds)

    def _report(self) -> None:
        now = time.monotonic()
        if now < self._next_report:
            return
        self._next_report = now + REPORT_S
        for name, receiver in self.receivers.items():
            if receiver.state == "receiving":
                self._show(name, f"{receiver.percent} %")
            elif receiver.state == "storing":
                self._show(name, "storing")


class _Group:
    """Hosts that lack the same contents, and so get the same pieces."""

    def __init__(self, lacks: frozenset[str], receivers: list[Receiver]) -> None:
        self.lacks = lacks
        self.receivers = receivers
        self.total = 0
        self._gathered: list[bytes] = []
        self._size = 0

    def add(self, chunk: bytes) -> None:
        """Queue a chunk, small ones together."""
        self._gathered.append(chunk)
        self._size += len(chunk)
        if self._size >= PIECE:
            self.flush()

    def flush(self) -> None:
        """Queue what was gathered."""
        data = b"".join(self._gathered)
        self._gathered, self._size = [], 0
        if not data:
            return
        small = zlib.compress(data, 1) if _shrinks(data) else data
        frame = Frame("piece", {"z": small is not data}, small)
        head = frame.head()
        for receiver in self.receivers:
            if receiver.state == "receiving":
                receiver.queued += len(data)
                receiver.total = self.total
                receiver.sent += len(small)
                receiver.session.share(head, small)


def _shrinks(data: bytes) -> bool:
    """Whether compressing is worth it, as its beginning shows."""
    sample = data[:SAMPLE]
    return len(zlib.compress(sample, 1)) < WORTH * len(sample)
