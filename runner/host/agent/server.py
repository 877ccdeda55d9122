"""Agent: our process at the host's end of a connection.

It answers the controller, each request in a thread of its own, so that pings never wait for a disk.
It owns nothing but the reserved ports until a run starts. Killing it does not affect a run: the
supervisor is not its child.
"""

from __future__ import annotations

import functools
import importlib
import os
import select
import signal
import sys
import time
import zlib
from collections import deque
from typing import (
    TYPE_CHECKING,
    Any,
    Callable,
    Deque,
    Dict,
    FrozenSet,
    Mapping,
    NoReturn,
    Optional,
)

from runner.core.wire import boot
from runner.core.wire.codec import MAGIC, STAYS, Frame, FrameDecoder
from runner.core.wire.paths import RunPaths, validated_paths
from runner.core.wire.timing import CONTROLLER_TIMEOUT_S
from runner.host.agent.stream import Credit
from runner.host.process.jobs import Job, Jobs, checkpoint

if TYPE_CHECKING:
    from runner.host.agent.follow import FollowedRun
    from runner.host.facts.collect import FactsResult
    from runner.host.storage.run_owner import RunSocket

MAX_UNSENT = 256 << 10  # bytes taken of a stream while the controller has not taken others
IN_ORDER = ("data", "streamed", "exited")  # what is sent in its order, and after all else
REQUEST_MODULES = {
    **dict.fromkeys(("facts", "sample", "listen", "probe"), "facts"),
    **dict.fromkeys(("offer", "manifest", "chunk", "finish", "start"), "launch"),
    **dict.fromkeys(("follow", "stream", "command", "dump_stacks"), "follow"),
    **dict.fromkeys(("exec", "prepare", "kill"), "exec"),
    **dict.fromkeys(("inventory", "fetch"), "fetch"),
    **dict.fromkeys(("runs", "run", "mark_relaunch_pending", "clean", "kill_leftovers"), "runs"),
}
"""The module beside this one whose `Handler` answers each kind of request, by `on_KIND`.

It is loaded with the first such request: a host may have to compile it for each connection.
"""

STAY_POLL_S = 0.5
PROGRESS_INTERVAL_S = 1.0  # how often the controller is told that a request is in progress
LEAVE_TIMEOUT_S = 60.0  # for a job that was cancelled to get on, such as on a frozen disk


class Agent:
    """One conversation with one controller about one node, on purpose all that requests share.

    `programs` are the texts of those of our files that become files here, by stem. The archive of
    our code is to be kept at `place`, "" for nowhere: no host keeps it before a user has it write
    something.
    """

    def __init__(
        self, in_fd: int, out_fd: int, programs: Mapping[str, str], archive: bytes, place: str
    ) -> None:
        self.programs = programs
        self._archive = archive
        self._place = place
        self.jobs = Jobs()
        self.credit = Credit()
        self.controller_timeout_s = CONTROLLER_TIMEOUT_S  # after such silence the agent exits
        self.facts: Optional[FactsResult] = None
        self.followed: Optional[FollowedRun] = None
        self.started: Optional[RunSocket] = None  # of the supervisor that was started here
        self._in_fd = in_fd
        self._out_fd = out_fd
        self._urgent: Deque[bytes] = deque()
        self._stream: Deque[bytes] = deque()  # at most what the controller has granted
        self._unsent = bytearray()
        self._last_received = time.monotonic()
        self._last_progress = self._last_received
        self._handlers: Dict[str, Any] = {}  # by the names of their modules

    # What request handlers need

    def handler(self, kind: str) -> Any:
        name = REQUEST_MODULES[kind]
        if name not in self._handlers:
            module: Any = importlib.import_module(f"runner.host.agent.{name}")
            self._handlers[name] = module.Handler(self)
        return self._handlers[name]

    def reply(self, kind: str, data: Dict[str, Any], payload: bytes = b"") -> None:
        """Queue a frame, in any thread."""
        queue = self._stream if kind in IN_ORDER else self._urgent
        queue.append(Frame(kind, data, payload).pack())
        self.jobs.wake()

    def answer(self, frame: Frame, kind: str, payload: bytes = b"", /, **data: Any) -> None:
        """Queue the answer to a request, unless nobody waits for it any more."""
        checkpoint()
        self.reply(kind, {"id": frame.data["id"], **data}, payload)

    def refuse(self, frame: Frame, error: BaseException) -> None:
        self.reply("refused", {"id": frame.data.get("id"), "reason": error_text(error)})

    def start(
        self, frame: Frame, answer: Callable[[Frame], object], *, has_answer: bool = True
    ) -> Job:
        """Answer a request in a thread; without `has_answer` it is no news that it gets on."""

        def refuse(error: BaseException) -> None:
            if not job.is_cancelled:
                self.refuse(frame, error)

        job = self.jobs.start(functools.partial(answer, frame), on_error=refuse)
        job.request = frame if has_answer else None
        return job

    def cancel_all(self, error: Exception) -> bool:
        """Refuse the requests in progress, which end where they can; return whether any was."""
        jobs = [job for job in self.jobs.running if job.request and not job.is_cancelled]
        for job in jobs:
            job.is_cancelled = True
            self.refuse(job.request, error)
        return bool(jobs)

    def require_facts(self) -> FactsResult:
        """Return what this host reported; raise RuntimeError if it was not asked yet."""
        if self.facts is None:
            raise RuntimeError("this agent has not reported its facts yet")
        return self.facts

    def cache_code(self) -> None:
        """Have this host cache our code, once."""
        if self._place:
            from runner.host.storage.pool import store_archive  # noqa: PLC0415 (once per version)

            self.jobs.start(functools.partial(store_archive, self._place, self._archive))
            self._place = ""

    @property
    def workdir(self) -> str:
        """Where runs are kept on this host, by the run that is followed or by the facts."""
        if self.followed is not None:
            return self.followed.order.workdir
        return self.require_facts().facts.workdir

    def run_folder(self, frame: Frame) -> RunPaths:
        return validated_paths(self.workdir, frame.data["run_id"], frame.data["node"])

    # The loop

    def serve(self) -> None:
        for descriptor in (self._in_fd, self._out_fd):
            os.set_blocking(descriptor, False)
        self._unsent += MAGIC
        self.reply("hello", clocks())
        decoder = FrameDecoder()
        try:
            while self._poll_once(decoder):
                self.jobs.deliver()
        finally:
            for handler in self._handlers.values():
                handler.close()
            self.jobs.finish(LEAVE_TIMEOUT_S)

    def _poll_once(self, decoder: FrameDecoder) -> bool:
        """Sleep until there is something to do; return False when the controller has left."""
        now = time.monotonic()
        if now - self._last_received >= self.controller_timeout_s:
            return False
        if now - self._last_progress >= PROGRESS_INTERVAL_S:
            for job in self.jobs.running:
                if job.request and job.moved_at >= self._last_progress and not job.is_cancelled:
                    self.reply("in_progress", {"id": job.request.data.get("id")})
            self._last_progress = now
        poll = select.poll()
        poll.register(self._in_fd, select.POLLIN)
        poll.register(self.jobs.wake_fd, select.POLLIN)
        if self._unsent or self._urgent or self._stream:
            poll.register(self._out_fd, select.POLLOUT)
        poll.poll(1000 * PROGRESS_INTERVAL_S)
        try:
            self._send()  # before what was posted after it is done
            try:
                chunk = os.read(self._in_fd, 1 << 18)
            except BlockingIOError:
                return True
            for frame in decoder.feed(chunk):
                self._dispatch(frame)
        except OSError:
            return False
        self._last_received = time.monotonic()  # an answer may have taken long
        return bool(chunk)

    def _send(self) -> None:
        """Send what the controller takes now; raise OSError if it has left."""
        while self._urgent:
            self._unsent += self._urgent.popleft()
        while self._stream and len(self._unsent) < MAX_UNSENT:
            self._unsent += self._stream.popleft()
        if self._unsent:
            try:
                sent = os.write(self._out_fd, memoryview(self._unsent)[: 1 << 20])
            except BlockingIOError:
                return
            del self._unsent[:sent]

    def _dispatch(self, frame: Frame) -> None:
        kind = frame.kind
        try:
            if kind == "ping":
                disk_wait_s = self.jobs.wait_s
                if self.followed is not None:
                    self.followed.renew_lease()
                    disk_wait_s = max(disk_wait_s, self.followed.disk_wait_s)
                self.answer(frame, "pong", **clocks(), disk_wait_s=round(disk_wait_s, 1))
            elif kind == "credit":
                self.credit.grant(int(frame.data["bytes"]))
            elif kind in REQUEST_MODULES:
                handler = self.handler(kind)
                answer = getattr(handler, f"on_{kind}")
                if kind in handler.at_once:
                    answer(frame)
                else:
                    self.start(frame, answer)
            else:
                raise ValueError(f"this agent knows no request {kind!r}")
        except Exception as error:  # noqa: BLE001 (the controller hears of it, whatever it is)
            self.refuse(frame, error)


class RequestHandler:
    """The requests that one module answers, each by its method `on_KIND`, which takes the frame.

    It is called in a thread of its own, or by the loop for the kinds `at_once`.
    """

    at_once: FrozenSet[str] = frozenset()

    def __init__(self, agent: Agent) -> None:
        self.agent = agent

    def close(self) -> None:
        """Clean up: the controller left."""


def clocks() -> Dict[str, float]:
    return {"mono": time.monotonic(), "wall": time.time()}


def error_text(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}{f' ({error.filename})' if error.filename else ''}"
    return str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"


def main(programs: Mapping[str, bytes], archive: bytes, place: str) -> NoReturn:
    """Take over the standard streams and serve; nothing else may write to them."""
    in_fd = os.dup(0)
    out_fd = os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # inherited as ignored, it hides how children end
    boot.raise_to_hard()
    texts = {name: zlib.decompress(text).decode() for name, text in programs.items()}
    agent = Agent(in_fd, out_fd, texts, archive, place)
    stays = STAYS in sys.argv
    if stays:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    agent.serve()
    while stays and agent.started is not None and agent.started.is_held:
        time.sleep(STAY_POLL_S)
    os._exit(0)  # whatever thread still waits for a disk
