"""Push of one release to every host that lacks it: each file is read once and sent to all.

Each host first tells which disk it stores releases on. One host of each disk gets the manifest and
replies what it lacks; one stream of just those contents follows. Only then do the others that share
the disk look at it, and take that host's word. No host gets more than `WINDOW` bytes ahead of the
slowest, so the memory used does not grow with the number of hosts.
"""

from __future__ import annotations

import time
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from runner.control.code.code_store import PushSource
from runner.control.rpc.session import HostSession, Inbox
from runner.control.rpc.wait import WaitLoop
from runner.core.errors import NotReady, Problem
from runner.core.planning.readiness import free_space_hint
from runner.core.spec import Spec
from runner.core.wire.codec import Frame, FrameError
from runner.core.wire.files import release_hash, unique_contents

WINDOW = 2 << 20
"""Bytes queued for one host beyond which all hosts wait for it."""

CHUNK = 256 << 10
SAMPLE = 16 << 10
REPORT_S = 0.2
IDLE_POLL_S = 0.05
BUSY_POLL_S = 0.002
SLICE_S = 0.02
RETRY_HINT = "what it had is intact; see if it is up (ssh, ping), and start again"
KEEP_HINT = "deploy.keep=0 removes older releases with the next push"
ANSWERED_STATES = {
    "store": ("offered",),
    "absent": ("adopting",),
    "missing": ("comparing",),
    "stored": ("comparing", "storing", "adopting"),
}
"""The states of a host in which it may send each kind of reply, which ends that state."""

MAX_COMPRESSED_RATIO = 0.9
"""A chunk is sent compressed if that makes its beginning smaller than this fraction of it."""


@dataclass
class PushTarget:
    """One host while the release is pushed to it."""

    session: HostSession
    missing_digests: frozenset[str] = frozenset()  # the contents it asked for
    state: str = "offered"
    """offered, waiting (its disk is known), comparing (it has the manifest), lacking, receiving,
    storing, stored, failed; shared (another host has its disk), adopting (that one's release)"""

    store_id: str = ""  # hosts that share a disk have the same
    queued: int = 0  # bytes of the stream queued for it so far, of `total`
    total: int = 0  # bytes it lacks
    sent: int = 0  # the bytes of `queued` after compression
    is_new: bool = False  # it did not have the release before
    problem: Problem | None = None

    @property
    def is_done(self) -> bool:
        """Whether nothing more is to come from it."""
        return self.state in ("stored", "failed")


class CodePush(WaitLoop):
    """The push of one release to some hosts; the `keepalive` hosts just stay in touch."""

    interrupted_message = "interrupted; nothing was started"

    def __init__(
        self,
        spec: Spec,
        snapshot: PushSource,
        sessions: Mapping[str, HostSession],
        inbox: Inbox,
        show: Callable[[str, str], None],
        keepalive: Mapping[str, HostSession] = MappingProxyType({}),
    ) -> None:
        super().__init__({**keepalive, **sessions}, inbox, spec.lost_s, show)
        self._snapshot = snapshot
        self.targets = {name: PushTarget(session) for name, session in sessions.items()}
        self._contents = unique_contents(snapshot.manifest)
        self._release = release_hash(snapshot.encoded)
        self._disk_full_hint = f"{free_space_hint(spec)}\n{KEEP_HINT}"
        self._retention = {"keep": spec.deploy.keep}
        payload = zlib.compress(snapshot.encoded, 1)
        header = Frame("manifest", {"id": 0, **self._retention}, payload).header_bytes()
        self._manifest = header, payload
        self._missing_cache: dict[tuple[int, ...], frozenset[str]] = {}
        self._stream: Iterator[int] | None = None
        self._next_report = 0.0

    def run(self) -> None:
        """Return when every host has the release; raise NotReady, or Interrupted by a signal."""
        for target in self.targets.values():
            target.session.request("offer")
        self.wait()
        problems = [failed.problem for failed in self.targets.values() if failed.problem]
        if problems:
            raise NotReady(problems)

    def _pending(self) -> list[str]:
        return [name for name, target in self.targets.items() if not target.is_done]

    def _owes_answer(self, name: str) -> bool:
        return self.targets[name].state not in ("waiting", "shared", "lacking")

    def _tick(self) -> float:
        self._send_manifests()
        self._start_stream()
        self._report()
        return IDLE_POLL_S if self._stream is None else 0.0 if self._pump() else BUSY_POLL_S

    def _on_frame(self, name: str, frame: Frame) -> bool:
        target = self.targets[name]
        if target.state not in ANSWERED_STATES.get(frame.kind, (target.state,)):
            raise FrameError(f"{frame.kind!r} that nobody asked for")
        if frame.kind == "store":
            # One without an id, such as a power cut may leave, is taken for a disk of its own.
            target.store_id = frame.data["store_id"] or name
            target.state = "waiting"
        elif frame.kind == "absent":  # an id copied with a disk image proves no shared disk
            target.store_id = name
            target.state = "waiting"
        elif frame.kind == "missing":
            target.missing_digests = self._digests(frame.data["missing"])
            target.state = "lacking"
        elif frame.kind == "stored":
            target.state = "stored"
            target.is_new = frame.data["new"]
            self._show(name, "has the code")
            self._release_shared(target.store_id, stored=True)
        elif frame.kind == "refused":
            self._on_lost(name, f"could not store the code: {frame.data['reason']}")
        return frame.kind in ANSWERED_STATES

    def _digests(self, missing: tuple[int, ...]) -> frozenset[str]:
        """Return the contents of files, by their indices; many hosts lack the same."""
        files = self._snapshot.manifest.files
        if not all(0 <= index < len(files) for index in missing):
            raise FrameError("an index beyond the manifest")
        if missing not in self._missing_cache:
            self._missing_cache[missing] = frozenset(files[index].digest for index in missing)
        return self._missing_cache[missing]

    def _on_closed(self, session: HostSession, reason: str) -> None:
        message = f"the connection to it broke while the code was pushed: {reason}"
        self._on_lost(session.node.name, message)

    def _on_lost(self, name: str, reason: str) -> None:
        target = self.targets[name]
        if target.session.idle_s > self.lost_s:
            target.session.close()
        disk_full = any(marker in reason for marker in ("No space left", "quota exceeded"))
        hint = self._disk_full_hint if disk_full else RETRY_HINT
        target.state = "failed"
        target.problem = Problem(name, reason, hint)
        self._show(name, "failed")
        self._release_shared(target.store_id, stored=False)

    def _release_shared(self, store_id: str, *, stored: bool) -> None:
        """Have the hosts that share a disk adopt what one of them stored, or another one store."""
        for target in self.targets.values():
            if target.store_id == store_id and target.state == "shared":
                target.state = "adopting" if stored else "waiting"
                if stored:
                    target.session.request("adopt", {"release": self._release})

    def _send_manifests(self) -> None:
        """Send the manifest to one host of each disk, once all disks are known."""
        if any(target.state == "offered" for target in self.targets.values()):
            return
        states = ("comparing", "lacking", "receiving", "storing")
        taken = {target.store_id for target in self.targets.values() if target.state in states}
        for name, target in self.targets.items():
            if target.state == "waiting" and target.store_id in taken:
                target.state = "shared"
                self._show(name, "shares a disk")
            elif target.state == "waiting":
                target.state = "comparing"
                taken.add(target.store_id)
                target.session.send(*self._manifest)

    def _start_stream(self) -> None:
        """Begin the stream, to one host of each disk, once each of them has replied."""
        busy_states = ("offered", "comparing", "receiving", "storing")
        if any(target.state in busy_states for target in self.targets.values()):
            return
        leaders = [target for target in self.targets.values() if target.state == "lacking"]
        for target in leaders:
            target.state = "receiving"
        if leaders:
            self._stream = self._stream_to(leaders)

    def _pump(self) -> bool:
        """Queue a slice of the stream; return whether more can be queued at once."""
        deadline = time.monotonic() + SLICE_S
        while self._stream is not None and time.monotonic() < deadline:
            receiving = (t for t in self.targets.values() if t.state == "receiving")
            if any(target.session.unsent > WINDOW for target in receiving):
                return False
            if next(self._stream, None) is None:
                self._stream = None
        return self._stream is not None

    def _stream_to(self, leaders: list[PushTarget]) -> Iterator[int]:
        """Read each content that a host lacks once, and queue it; yield at each chunk.

        Hosts that lack the same get the same pieces; in these, small chunks are together.
        """
        groups: dict[frozenset[str], list[PushTarget]] = defaultdict(list)
        for target in leaders:
            groups[target.missing_digests].append(target)
        pieces = {lacks: bytearray() for lacks in groups}
        for lacks, targets in groups.items():
            total = sum(file.size for file in self._contents if file.digest in lacks)
            for target in targets:
                target.total = total
        for file in self._contents:
            lacking = [lacks for lacks in groups if file.digest in lacks]
            for chunk in self._snapshot.read(file) if lacking else ():
                for lacks in lacking:
                    pieces[lacks] += chunk
                    if len(pieces[lacks]) >= CHUNK:
                        _queue_piece(groups[lacks], bytes(pieces[lacks]))
                        pieces[lacks].clear()
                yield len(chunk)
        for lacks, targets in groups.items():
            if pieces[lacks]:
                _queue_piece(targets, bytes(pieces[lacks]))
            for target in targets:
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
                taken = max(0, target.queued - target.session.unsent)
                self._show(name, f"{round(100 * taken / (target.total or 1))} %")
            elif target.state == "storing":
                self._show(name, "storing")


def _queue_piece(targets: list[PushTarget], data: bytes) -> None:
    """Queue a piece of the stream for hosts that lack the same."""
    sample = data[:SAMPLE]
    is_compressible = len(zlib.compress(sample, 1)) < MAX_COMPRESSED_RATIO * len(sample)
    payload = zlib.compress(data, 1) if is_compressible else data
    header = Frame("chunk", {"compressed": is_compressible}, payload).header_bytes()
    for target in targets:
        if target.state == "receiving":
            target.queued += len(data)
            target.sent += len(payload)
            target.session.send(header, payload)
