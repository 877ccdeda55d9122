"""Push of one release to every host that lacks it.

Each host first tells which disk it stores releases on. One host of each disk gets the manifest and
replies what it lacks; hosts that lack the same get one stream of just that, for which each file is
read once. The others of a disk get the manifest when that is done. What is under way to a host is
bounded by its `Window`; all of a stream wait for the slowest.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from runner.control.code.pool import PushSource
from runner.control.rpc.session import HostSession, Inbox, Window
from runner.control.rpc.wait import WaitLoop
from runner.core.errors import NotReady, Problem
from runner.core.planning.readiness import free_space_hint
from runner.core.spec import Spec
from runner.core.wire.codec import Frame, FrameError

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
    "missing": ("comparing",),
    "stored": ("comparing", "storing"),
}
"""The states of a host in which it may send each kind of reply, which ends that state."""

MAX_COMPRESSED_RATIO = 0.9
"""A chunk is sent compressed if that makes its beginning smaller than this fraction of it."""


@dataclass
class PushTarget:
    """One host while the release is pushed to it."""

    session: HostSession
    missing: tuple[int, ...] = ()  # the files it asked for, by index
    state: str = "offered"
    """offered, waiting (its disk is known), shared (another host of its disk is first), comparing
    (it has the manifest), lacking, receiving, storing, stored, failed"""

    store_id: str = ""  # hosts that share a disk have the same
    queued: int = 0  # bytes of the stream queued for it so far, of `total`
    total: int = 0  # bytes it lacks
    sent: int = 0  # the bytes of `queued` after compression
    window: Window = field(default_factory=Window)
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
        self._files = snapshot.manifest.files
        self._disk_full_hint = f"{free_space_hint(spec)}\n{KEEP_HINT}"
        payload = zlib.compress(snapshot.encoded, 1)
        header = Frame("manifest", {"id": 0, "keep": spec.deploy.keep}, payload).header_bytes()
        self._manifest = (header, payload)
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
        if self._stream is None:
            return IDLE_POLL_S
        return 0.0 if self._pump() else BUSY_POLL_S

    def _on_frame(self, name: str, frame: Frame) -> bool:
        target = self.targets[name]
        if target.state not in ANSWERED_STATES.get(frame.kind, (target.state,)):
            raise FrameError(f"{frame.kind!r} that nobody asked for")
        if frame.kind == "store":
            target.store_id = frame.data["store_id"]
            target.state = "waiting"
        elif frame.kind == "missing":
            target.missing = frame.data["missing"]
            distinct = {index for index in target.missing if 0 <= index < len(self._files)}
            if len(distinct) < len(target.missing):
                raise FrameError("an index that is beyond the manifest, or there twice")
            target.state = "lacking"
        elif frame.kind == "stored":
            target.state = "stored"
            target.is_new = frame.data["new"]
            self._show(name, "has the code")
        elif frame.kind == "taken":
            target.window.on_taken(frame.data["bytes"])
            return True
        elif frame.kind == "refused":
            self._on_lost(name, f"could not store the code: {frame.data['reason']}")
        return frame.kind in ANSWERED_STATES

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

    def _send_manifests(self) -> None:
        """Send the manifest to one host of each disk, and to the others when that one has all."""
        targets = self.targets.values()
        if any(target.state == "offered" for target in targets):
            return
        stored = {target.store_id for target in targets if target.state == "stored"}
        idle_states = ("waiting", "shared", "failed", "stored")
        busy = {target.store_id for target in targets if target.state not in idle_states}
        for name, target in self.targets.items():
            if target.state not in ("waiting", "shared"):
                continue
            if target.store_id in stored or target.store_id not in busy:
                target.state = "comparing"
                busy.add(target.store_id)
                target.session.send(*self._manifest)
            elif target.state == "waiting":
                target.state = "shared"
                self._show(name, "shares a disk")

    def _start_stream(self) -> None:
        """Begin a stream to hosts that lack the same, once no other host may yet say so."""
        busy_states = ("offered", "comparing", "receiving", "storing")
        if any(target.state in busy_states for target in self.targets.values()):
            return
        lacking = [target for target in self.targets.values() if target.state == "lacking"]
        group = [target for target in lacking if target.missing == lacking[0].missing]
        for target in group:
            target.state = "receiving"
            target.total = sum(self._files[index].size for index in target.missing)
        if group:
            self._stream = self._stream_to(group)

    def _pump(self) -> bool:
        """Queue a slice of the stream; return whether more can be queued at once."""
        deadline = time.monotonic() + SLICE_S
        while self._stream is not None and time.monotonic() < deadline:
            if any(t.state == "receiving" and not t.window.room for t in self.targets.values()):
                return False
            if next(self._stream, None) is None:
                self._stream = None
        return self._stream is not None

    def _stream_to(self, group: list[PushTarget]) -> Iterator[int]:
        """Queue what hosts lack, small files together in one piece; yield at each chunk."""
        piece = bytearray()
        for index in group[0].missing:
            for chunk in self._snapshot.read(self._files[index]):
                piece += chunk
                if len(piece) >= CHUNK:
                    _queue_piece(group, bytes(piece))
                    piece.clear()
                yield len(chunk)
        if piece:
            _queue_piece(group, bytes(piece))
        for target in group:
            if target.state == "receiving":
                target.state = "storing"
                target.session.request("finish")

    def _report(self) -> None:
        now = time.monotonic()
        if now < self._next_report:
            return
        self._next_report = now + REPORT_S
        for name, target in self.targets.items():
            if target.state == "receiving":
                written = max(0, target.queued - target.window.ahead)
                self._show(name, f"{round(100 * written / (target.total or 1))} %")
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
            target.window.ahead += len(payload)
            target.session.send(header, payload)
