"""Push of one release: hosts that lack the same get one stream of just that, read once.

Of hosts that share a disk, one gets it; the others get the manifest when that is done.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from runner.control.code.pool import Release
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
MAX_COMPRESSED_RATIO = 0.9
"""A chunk is sent compressed if that makes its beginning smaller than this fraction of it."""


@dataclass(eq=False)
class PushTarget:
    session: HostSession
    owes: tuple[str, ...] = ("store",)  # it is to send one of these kinds of replies
    store_id: str = ""  # hosts that share a disk have the same
    missing: tuple[int, ...] = ()  # the files it asked for, by index, once it has compared
    queued: int = 0  # bytes of the stream queued for it so far, of `total`
    total: int = 0  # bytes it lacks
    sent: int = 0  # the bytes of `queued` after compression
    window: Window = field(default_factory=Window)
    is_stored: bool = False
    is_new: bool = False  # it did not have the release before
    problem: Problem | None = None

    @property
    def is_done(self) -> bool:
        return self.is_stored or self.problem is not None


class CodePush(WaitLoop):
    """The push of one release to the hosts that lack it; the others just stay in touch."""

    interrupted_message = "interrupted; nothing was started"

    def __init__(
        self,
        spec: Spec,
        release: Release,
        sessions: Mapping[str, HostSession],
        lacking: Iterable[str],
        inbox: Inbox,
        show: Callable[[str, str], None],
    ) -> None:
        super().__init__(sessions, inbox, spec.lost_s, show)
        self._release = release
        self.targets = {name: PushTarget(sessions[name]) for name in lacking}
        self._files = release.manifest.files
        self._disk_full_hint = f"{free_space_hint(spec)}\n{KEEP_HINT}"
        payload = zlib.compress(release.encoded, 1)
        header = Frame("manifest", {"id": 0, "keep": spec.deploy.keep}, payload).header_bytes()
        self._manifest = (header, payload)
        self._receiving: list[PushTarget] = []
        self._stream: Iterator[int] = iter(())  # to those
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
        target = self.targets[name]
        return bool(target.owes) or target in self._receiving

    def _tick(self) -> float:
        targets = self.targets.values()
        if not any("store" in target.owes for target in targets):
            self._send_manifests()
        if not self._receiving and not any(target.owes for target in targets):
            self._start_stream()
        self._report()
        if not self._receiving:
            return IDLE_POLL_S
        return 0.0 if self._pump() else BUSY_POLL_S

    def _on_frame(self, name: str, frame: Frame) -> bool:
        target = self.targets[name]
        if frame.kind == "taken":
            target.window.on_taken(frame.data["bytes"])
        elif frame.kind == "refused":
            self._on_lost(name, f"could not store the code: {frame.data['reason']}")
            return False
        elif frame.kind not in ("store", "missing", "stored"):
            return False
        elif frame.kind not in target.owes:
            raise FrameError(f"{frame.kind!r} that nobody asked for")
        elif frame.kind == "store":
            target.store_id = frame.data["store_id"]
            target.owes = ()
        elif frame.kind == "missing":
            target.missing = frame.data["missing"]
            distinct = {index for index in target.missing if 0 <= index < len(self._files)}
            if not 0 < len(distinct) == len(target.missing):
                raise FrameError("no index, one that is beyond the manifest, or there twice")
            target.owes = ()
        else:
            target.is_stored = True
            target.is_new = frame.data["new"]
            target.owes = ()
            self._show(name, "has the code")
        return True

    def _on_closed(self, session: HostSession, reason: str) -> None:
        message = f"the connection to it broke while the code was pushed: {reason}"
        self._on_lost(session.node.name, message)

    def _on_lost(self, name: str, reason: str) -> None:
        target = self.targets[name]
        if target.session.idle_s > self.lost_s:
            target.session.close()
        disk_full = any(marker in reason for marker in ("No space left", "quota exceeded"))
        hint = self._disk_full_hint if disk_full else RETRY_HINT
        target.problem = Problem(name, reason, hint)
        target.owes = ()
        self._receiving = [each for each in self._receiving if each is not target]
        self._show(name, "failed")

    def _send_manifests(self) -> None:
        """Send the manifest to one host of each disk, and to the others when that one has all."""
        targets = self.targets.values()
        stored = {target.store_id for target in targets if target.is_stored}
        unasked = [each for each in targets if not (each.owes or each.missing or each.is_done)]
        busy = {each.store_id for each in targets if not each.is_done and each not in unasked}
        for target in unasked:
            if target.store_id in stored or target.store_id not in busy:
                target.owes = ("missing", "stored")
                busy.add(target.store_id)
                target.session.send(*self._manifest)

    def _start_stream(self) -> None:
        """Begin a stream to hosts that lack the same: no other host may yet say so."""
        lacking = [each for each in self.targets.values() if each.missing and not each.is_done]
        if not lacking:
            return
        missing = lacking[0].missing
        self._receiving = [target for target in lacking if target.missing == missing]
        for target in self._receiving:
            target.total = sum(self._files[index].size for index in missing)
        self._stream = self._stream_of(missing)

    def _pump(self) -> bool:
        """Queue a slice of the stream; return whether more can be queued at once."""
        deadline = time.monotonic() + SLICE_S
        while self._receiving and time.monotonic() < deadline:
            if not all(target.window.room for target in self._receiving):
                return False
            next(self._stream, None)
        return bool(self._receiving)

    def _stream_of(self, missing: Sequence[int]) -> Iterator[int]:
        """Queue what hosts lack, small files together in one piece; yield at each chunk."""
        piece = bytearray()
        for index in missing:
            for chunk in self._release.read(self._files[index]):
                piece += chunk
                if len(piece) >= CHUNK:
                    self._queue_piece(bytes(piece))
                    piece.clear()
                yield len(chunk)
        if piece:
            self._queue_piece(bytes(piece))
        for target in self._receiving:
            target.owes = ("stored",)
            target.session.request("finish")
        self._receiving = []

    def _queue_piece(self, data: bytes) -> None:
        sample = data[:SAMPLE]
        is_compressible = len(zlib.compress(sample, 1)) < MAX_COMPRESSED_RATIO * len(sample)
        payload = zlib.compress(data, 1) if is_compressible else data
        header = Frame("chunk", {"compressed": is_compressible}, payload).header_bytes()
        for target in self._receiving:
            target.queued += len(data)
            target.sent += len(payload)
            target.window.ahead += len(payload)
            target.session.send(header, payload)

    def _report(self) -> None:
        now = time.monotonic()
        if now < self._next_report:
            return
        self._next_report = now + REPORT_S
        for name, target in self.targets.items():
            if target in self._receiving:
                written = max(0, target.queued - target.window.ahead)
                self._show(name, f"{round(100 * written / (target.total or 1))} %")
            elif target.owes == ("stored",):
                self._show(name, "storing")
