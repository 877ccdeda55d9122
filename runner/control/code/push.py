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
from runner.control.rpc.session import HostSession, Inbox
from runner.core.errors import Interrupted, NotReady, Problem
from runner.core.model.release import unique_contents
from runner.core.model.spec import Spec
from runner.core.protocol.frames import Frame

WINDOW = 2 << 20
"""Bytes queued for one host that make all wait for it."""

CHUNK = 256 << 10
SAMPLE = 16 << 10
PING_S, REPORT_S = 2.0, 0.2
IDLE_POLL_S, BUSY_POLL_S, SLICE_S = 0.05, 0.002, 0.02
DISK_FULL_HINT = (
    "python -m runner clean --older-than 1h removes what ended runs left, deploy.keep=0 all older "
    "releases\nor set cluster.workdir to another disk"
)
RETRY_HINT = "what it had is whole; see if it is up (ssh, ping), and start again"
MAX_COMPRESSED_RATIO = 0.9
"""A piece is sent compressed if that makes it smaller than this part of itself."""


@dataclass
class PushTarget:
    """One host while the release is pushed to it.

    Attributes:
        session: The wire to it.
        missing_digests: The contents it asked for; None before it did.
        state: offered, waiting, receiving, storing, stored; shared (somebody else of the same
            disk receives), failed.
        store_id: Which store it keeps releases in; hosts that share a disk have the same.
        reoffered: Whether it was offered the release once more, after a host of its store had it.
        queued: Bytes of the stream queued for it so far, of `total`.
        total: Bytes it lacks.
        sent: What `queued` is on the wire, compressed.
        is_new: Whether the release was not there before.
        problem: Why it has no release.
    """

    session: HostSession
    missing_digests: frozenset[str] | None = None
    state: str = "offered"
    store_id: str = ""
    reoffered: bool = False
    queued: int = 0
    total: int = 0
    sent: int = 0
    is_new: bool = False
    problem: Problem | None = None

    @property
    def percent(self) -> int:
        """How much of what it lacks it has taken."""
        return round(100 * max(0, self.queued - self.session.unsent) / (self.total or 1))

    @property
    def is_done(self) -> bool:
        """Whether nothing more is to come from it."""
        return self.state in ("stored", "failed")


class CodePush:
    """One release on its way to some hosts."""

    def __init__(
        self,
        spec: Spec,
        snapshot: Snapshot,
        sessions: Mapping[str, HostSession],
        inbox: Inbox,
        show: Callable[[str, str], None],
        keepalive_only: Iterable[HostSession] = (),
    ) -> None:
        """Prepare it.

        Args:
            spec: Its `deploy.keep` and `lost_s`.
            snapshot: The release.
            sessions: The hosts to push to, by node.
            inbox: Where all sessions put what they hear.
            show: Takes (node, state in a few words) whenever that changes.
            keepalive_only: Hosts that need no push, but would take our silence for our end.
        """
        self._keepalive_only = tuple(keepalive_only)
        self._spec, self._snapshot, self._inbox, self._show = spec, snapshot, inbox, show
        self.targets = {name: PushTarget(session) for name, session in sessions.items()}
        self._contents = unique_contents(snapshot.manifest)
        self._retention = {"keep": spec.deploy.keep}
        self._manifest_payload = zlib.compress(snapshot.encoded, 1)
        self._manifest_header = Frame(
            "manifest", {"id": 0, **self._retention}, self._manifest_payload
        ).header_bytes()
        self._missing_cache: dict[tuple[int, ...], frozenset[str]] = {}
        self._stream: Iterator[int] | None = None
        self._next_ping = self._next_report = 0.0

    def run(self) -> None:
        """Return when every host has the release.

        Raises:
            NotReady: With the problem of every host that has not.
            Interrupted: The user asked us to end.
        """
        for target in self._all_targets:
            target.session.send_shared(self._manifest_header, self._manifest_payload)
        while not all(target.is_done for target in self._all_targets):
            self._receive(
                IDLE_POLL_S if self._stream is None else 0.0 if self._pump() else BUSY_POLL_S
            )
            self._check_liveness()
            self._start_stream()
            self._report()
        problems = [failed.problem for failed in self.targets.values() if failed.problem]
        if problems:
            raise NotReady(problems)

    @property
    def _all_targets(self) -> Iterable[PushTarget]:
        return self.targets.values()

    def _receive(self, timeout_s: float) -> None:
        try:
            session, frame = self._inbox.get(timeout=timeout_s)
        except queue.Empty:
            return
        if session is None:
            raise Interrupted(128 + frame.data["signal"])
        target = self.targets.get(session.node.name)
        if target is None or target.is_done:
            return
        if frame.kind == "missing":
            files = self._snapshot.manifest.files
            missing = tuple(frame.data["missing"])  # many hosts lack the same
            if missing not in self._missing_cache:
                self._missing_cache[missing] = frozenset(files[index].digest for index in missing)
            target.missing_digests = self._missing_cache[missing]
            # A name that was copied with a disk's image is no sign of one disk.
            unshared = target.reoffered or not frame.data["store_id"]
            target.store_id = session.node.name if unshared else str(frame.data["store_id"])
            target.state = "waiting"
        elif frame.kind == "stored":
            target.state, target.is_new = "stored", bool(frame.data["new"])
            self._show(session.node.name, "has the code")
            self._reoffer(target.store_id, stored=True)
        elif frame.kind == "refused":
            self._fail(target, f"could not store the code: {frame.data['reason']}")
        elif frame.kind == "closed":
            message = (
                f"the connection to it broke while the code was pushed: {frame.data['reason']}"
            )
            self._fail(target, message)

    def _fail(self, target: PushTarget, message: str) -> None:
        name = target.session.node.name
        disk_full = any(marker in message for marker in ("No space left", "quota exceeded"))
        hint = DISK_FULL_HINT if disk_full else RETRY_HINT
        target.state, target.problem = "failed", Problem(name, message, hint)
        self._show(name, "failed")
        self._reoffer(target.store_id, stored=False)

    def _reoffer(self, store_id: str, *, stored: bool) -> None:
        """One host of a shared disk is done: the others see whether it did it for all."""
        for target in self._all_targets:
            if store_id and target.store_id == store_id and target.state == "shared":
                target.state, target.reoffered = "offered", stored
                target.session.send_shared(self._manifest_header, self._manifest_payload)

    def _check_liveness(self) -> None:
        now = time.monotonic()
        if now >= self._next_ping:
            self._next_ping = now + PING_S
            for session in (*(t.session for t in self._all_targets), *self._keepalive_only):
                if not session.closed:
                    session.request("ping")
        for target in self._all_targets:
            idle_s = target.session.idle_s
            if not target.is_done and idle_s > self._spec.lost_s:
                target.session.close()
                self._fail(target, f"nothing was heard from it for {idle_s:.0f} s")

    def _start_stream(self) -> None:
        """Once all have said what they lack, stream it, to one host of each shared disk."""
        busy_states = ("offered", "receiving", "storing")
        if any(target.state in busy_states for target in self._all_targets):
            return
        leaders: dict[str, PushTarget] = {}
        for name, target in self.targets.items():
            if target.state != "waiting":
                continue
            if leaders.setdefault(target.store_id, target) is target:
                target.state = "receiving"
            else:
                target.state = "shared"
                target.session.request("abort_push")
                self._show(name, "shares a disk")
        if leaders:
            self._stream = self._stream_to(list(leaders.values()))

    def _pump(self) -> bool:
        """Stream a little; False when that has to wait for a host, or there is nothing to do."""
        deadline = time.monotonic() + SLICE_S
        while self._stream is not None and time.monotonic() < deadline:
            if any(t.state == "receiving" and t.session.unsent > WINDOW for t in self._all_targets):
                return False
            if next(self._stream, None) is None:
                self._stream = None
        return self._stream is not None

    def _stream_to(self, leaders: list[PushTarget]) -> Iterator[int]:
        """Read every content that some host lacks, once, and queue it; yield at each chunk."""
        groups = [
            _StreamGroup(lacks, [t for t in leaders if t.missing_digests == lacks])
            for lacks in {t.missing_digests for t in leaders if t.missing_digests is not None}
        ]
        for target in leaders:
            target.queued = 0
        for group in groups:
            group.total = sum(
                file.size for file in self._contents if file.digest in group.missing_digests
            )
        for file in self._contents:
            interested = [group for group in groups if file.digest in group.missing_digests]
            for chunk in self._snapshot.read(file) if interested else ():
                for group in interested:
                    group.add(chunk)
                yield len(chunk)
        for group in groups:
            group.flush()
            for target in group.targets:
                if target.state == "receiving":
                    target.state = "storing"
                    target.session.request("finish", self._retention)

    def _report(self) -> None:
        now = time.monotonic()
        if now < self._next_report:
            return
        self._next_report = now + REPORT_S
        for name, target in self.targets.items():
            if target.state == "receiving":
                self._show(name, f"{target.percent} %")
            elif target.state == "storing":
                self._show(name, "storing")


class _StreamGroup:
    """Hosts that lack the same contents, and so get the same pieces."""

    def __init__(self, missing_digests: frozenset[str], targets: list[PushTarget]) -> None:
        self.missing_digests = missing_digests
        self.targets = targets
        self.total = 0
        self._buffer: list[bytes] = []
        self._buffered = 0

    def add(self, chunk: bytes) -> None:
        """Queue a chunk, small ones together."""
        self._buffer.append(chunk)
        self._buffered += len(chunk)
        if self._buffered >= CHUNK:
            self.flush()

    def flush(self) -> None:
        """Queue what was gathered."""
        data = b"".join(self._buffer)
        self._buffer, self._buffered = [], 0
        if not data:
            return
        payload = zlib.compress(data, 1) if _is_compressible(data) else data
        frame = Frame("chunk", {"compressed": payload is not data}, payload)
        header = frame.header_bytes()
        for target in self.targets:
            if target.state == "receiving":
                target.queued += len(data)
                target.total = self.total
                target.sent += len(payload)
                target.session.send_shared(header, payload)


def _is_compressible(data: bytes) -> bool:
    """Whether compressing is worth it, as its beginning shows."""
    sample = data[:SAMPLE]
    return len(zlib.compress(sample, 1)) < MAX_COMPRESSED_RATIO * len(sample)
