"""Agent: our process at the host's end of a connection.

It answers the controller and reads files, these in a second thread, so that pings never wait for a
disk. It owns nothing but the reserved ports until a run starts. Killing it does not affect a run:
the supervisor is not its child.
"""

from __future__ import annotations

import functools
import importlib
import os
import select
import signal
import sys
import time
from collections import deque
from dataclasses import dataclass, field
from typing import (
    TYPE_CHECKING,
    Any,
    Callable,
    Deque,
    Dict,
    NoReturn,
    Optional,
    Sequence,
    Set,
    TypeVar,
)

from runner.core.wire import boot
from runner.core.wire.codec import MAGIC, PROTOCOL, STAYS, Frame, FrameDecoder
from runner.core.wire.facts import FactsRequest
from runner.core.wire.paths import RunPaths, validated_paths
from runner.core.wire.timing import ANSWER_TIMEOUT_S, CONTROLLER_TIMEOUT_S
from runner.host.agent.request_queue import RequestQueue
from runner.host.process.event_loop import Steps
from runner.host.process.file_worker import FileWorker

if TYPE_CHECKING:
    from runner.host.facts.collect import FactsResult
    from runner.host.process.importer import HostCode

MAX_UNSENT = 4 << 20  # bytes for the controller beyond which no command's output is read
REQUEST_MODULES = {
    "facts": "facts",
    **dict.fromkeys(("offer", "manifest", "chunk", "finish"), "push"),
    "adopt": "push",
    **dict.fromkeys(("record", "start"), "launch"),
    **dict.fromkeys(("follow", "read", "command"), "follow"),
    **dict.fromkeys(("exec", "more_output", "kill"), "exec"),
    **dict.fromkeys(("inventory", "fetch"), "fetch"),
    **dict.fromkeys(("runs", "run", "mark_relaunch_pending"), "runs"),
    **dict.fromkeys(("kill_leftovers", "clean"), "clean"),
    "dump_stacks": "stacks",
    "sample": "sample",
    **dict.fromkeys(("listen", "probe"), "between_hosts"),
}
"""The module beside this one whose `Handler` answers each kind of request, by `on_KIND`.

It is loaded with the first such request: a host may have to compile it for each connection.
"""

BUSY_POLL_S, IDLE_POLL_S = 0.02, 0.05
STAY_POLL_S = 0.5
UNREAD_PONG_S = 0.5  # how often the controller hears from an agent that reads none of its pings

H = TypeVar("H", bound="RequestHandler")


@dataclass
class AgentContext:
    """One conversation with one controller, as the request handlers see it."""

    reply: Callable[..., None]  # takes the kind of an answer, its data, and perhaps raw bytes
    can_send: Callable[[], bool]  # whether the controller takes what is sent
    get_handler: Callable[[str], Any]  # returns that of a kind of request, loading it if need be
    code: HostCode  # ours
    controller_timeout_s: float = CONTROLLER_TIMEOUT_S  # after such silence the agent exits
    idle_poll_s: float = IDLE_POLL_S  # how often files are looked at that do not grow
    facts: Optional[FactsResult] = None
    facts_request: FactsRequest = field(default_factory=lambda: FactsRequest(""))
    followed_workdir: str = ""  # of the run that is followed

    def __post_init__(self) -> None:
        self.files = FileWorker()
        self.requests = RequestQueue(
            self.files, self.reply, lambda frame, error: self.refuse(frame, error_text(error))
        )

    def answer(self, frame: Frame, kind: str, payload: bytes = b"", /, **data: Any) -> None:
        """Queue the answer to a request."""
        self.reply(kind, {"id": frame.data["id"], **data}, payload)

    def refuse(self, frame: Frame, reason: str) -> None:
        """Answer that something could not be done."""
        self.reply("refused", {"id": frame.data.get("id"), "reason": reason})

    def require_facts(self) -> FactsResult:
        """Return what this host reported; raise RuntimeError if it was not asked yet."""
        if self.facts is None:
            raise RuntimeError("this agent has not reported its facts yet")
        return self.facts

    def cache_code(self) -> None:
        """Have this host cache our code, once."""
        if self.code.place:
            from runner.host.storage.code_cache import store  # noqa: PLC0415 (once per version)

            self.files.submit(functools.partial(store, self.code.place, self.code.archive))
            self.code.place = ""

    @property
    def workdir(self) -> str:
        """Where runs are kept on this host, by the run that is followed or by the facts."""
        return self.followed_workdir or self.require_facts().facts.workdir

    def run_folder(self, frame: Frame) -> RunPaths:
        """Return the folder of the run that a request names."""
        return validated_paths(self.workdir, frame.data["run_id"], frame.data["node"])


class RequestHandler:
    """The requests that one module answers, each by its method `on_KIND`.

    Such a method takes the request's frame. What may wait for a disk it returns as steps, which
    become a job: they are done in another thread, but for the functions they yield.
    """

    def __init__(self, context: AgentContext) -> None:
        self.context = context
        self.children: Dict[Any, Any] = {}  # bounded children or commands, which end with us

    @property
    def busy(self) -> bool:
        """Whether files should be looked at more often."""
        return False

    @property
    def pipes(self) -> Sequence[int]:
        """Descriptors to wake up for."""
        return [pipe for child in self.children.values() for pipe in child.pipes]

    @property
    def disk_wait_s(self) -> float:
        """For how long the disk has not answered the supervisor."""
        return 0.0

    def advance(self) -> None:
        """Continue what was begun; called at every turn of the loop."""

    def renew_lease(self) -> None:
        """Pass on that the controller was heard."""

    def close(self) -> None:
        """Clean up: the controller left."""
        for child in self.children.values():
            child.kill()


def one_step(answer: Callable[[H, Frame], None]) -> Callable[[H, Frame], Steps]:
    """Make a job of one step of a request that is answered at once, unless a disk takes long."""

    def steps(handler: H, frame: Frame) -> Steps:
        answer(handler, frame)
        yield

    return steps


class AgentServer:
    """One conversation with one controller about one node."""

    def __init__(self, in_fd: int, out_fd: int, code: HostCode) -> None:
        self._in_fd, self._out_fd = in_fd, out_fd
        self._decoder = FrameDecoder()
        self._replies: Deque[bytes] = deque()
        self._unsent = bytearray()
        self._next_pong = 0.0
        self._last_received = time.monotonic()
        self._context = AgentContext(
            self._reply, lambda: len(self._unsent) < MAX_UNSENT, self._load, code
        )
        self._loaded: Dict[str, RequestHandler] = {}

    def _load(self, kind: str) -> RequestHandler:
        """Return the handler that answers a kind of request."""
        name = REQUEST_MODULES[kind]
        if name not in self._loaded:
            module: Any = importlib.import_module(f"runner.host.agent.{name}")
            self._loaded[name] = module.Handler(self._context)
        return self._loaded[name]

    def serve(self) -> None:
        """Answer until the controller goes away."""
        for descriptor in (self._in_fd, self._out_fd):
            os.set_blocking(descriptor, False)
        self._unsent += MAGIC
        self._reply("hello", {"protocol": PROTOCOL, "pid": os.getpid(), **clocks()})
        try:
            while self._poll_once():
                self._context.files.deliver()
                for handler in [*self._loaded.values()]:  # it may have others loaded
                    handler.advance()
        finally:
            self._context.requests.cancel_all("the controller left")
            for handler in self._loaded.values():
                handler.close()
            self._context.files.finish(ANSWER_TIMEOUT_S)
            self._context.files.close()

    def await_supervisor(self) -> None:
        """Return once the supervisor that was started here has ended."""
        handler: Any = self._loaded.get("launch")
        while handler is not None and handler.has_supervisor:
            time.sleep(STAY_POLL_S)

    def _poll_once(self) -> bool:
        """Sleep until there is something to do; return False when the controller has left."""
        if time.monotonic() - self._last_received >= self._context.controller_timeout_s:
            return False
        ready = self._wait()
        try:
            if self._out_fd in ready:
                sent = os.write(self._out_fd, memoryview(self._unsent)[: 1 << 20])
                del self._unsent[:sent]
            if self._context.requests.full:
                self._last_received = time.monotonic()  # we are not reading
                if self._last_received >= self._next_pong:
                    self._next_pong = self._last_received + UNREAD_PONG_S
                    self._reply("pong", self._pong())
            if self._in_fd in ready:
                chunk = os.read(self._in_fd, 1 << 18)
                if not chunk:
                    return False
                for frame in self._decoder.feed(chunk):
                    self._dispatch(frame)
                self._last_received = time.monotonic()  # an answer may have taken long
        except BlockingIOError:
            pass
        except OSError:
            return False
        return True

    def _wait(self) -> Set[int]:
        """Wait for a descriptor, or until files should be looked at; return those to handle."""
        while self._replies:
            self._unsent += self._replies.popleft()
        is_busy = any(handler.busy for handler in self._loaded.values())
        poll = select.poll()
        if self._unsent:
            poll.register(self._out_fd, select.POLLOUT)
        poll.register(self._context.files.wake_fd, select.POLLIN)
        if not self._context.requests.full:
            poll.register(self._in_fd, select.POLLIN)
        if self._context.can_send():
            for pipe in [pipe for handler in self._loaded.values() for pipe in handler.pipes]:
                poll.register(pipe, select.POLLIN)
        timeout_s = BUSY_POLL_S if is_busy else self._context.idle_poll_s
        return {descriptor for descriptor, _ in poll.poll(1000 * timeout_s)}

    def _dispatch(self, frame: Frame) -> None:
        try:
            if frame.kind == "ping":
                for handler in self._loaded.values():
                    handler.renew_lease()
                self._context.answer(frame, "pong", **self._pong())
            elif frame.kind in REQUEST_MODULES:
                steps = getattr(self._load(frame.kind), f"on_{frame.kind}")(frame)
                if steps is not None:
                    self._context.requests.add(frame, steps)
            else:
                self._context.refuse(frame, f"this agent knows no request {frame.kind!r}")
        except Exception as error:  # noqa: BLE001 (the controller hears of it, whatever it is)
            self._context.refuse(frame, error_text(error))

    def _pong(self) -> Dict[str, float]:
        waits = [handler.disk_wait_s for handler in self._loaded.values()]
        return {**clocks(), "disk_wait_s": round(max(self._context.files.wait_s, *waits, 0.0), 1)}

    def _reply(self, kind: str, data: Dict[str, Any], payload: bytes = b"") -> None:
        """Queue a frame, in any thread."""
        self._replies.append(Frame(kind, data, payload).pack())


def clocks() -> Dict[str, float]:
    """Return both clocks of this host."""
    return {"mono": time.monotonic(), "wall": time.time()}


def error_text(error: Exception) -> str:
    """Return an error as a message for the user."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}{f' ({error.filename})' if error.filename else ''}"
    return str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"


def main(code: HostCode) -> NoReturn:
    """Take over the standard streams and serve; nothing else may write to them."""
    in_fd, out_fd = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # inherited as ignored, it hides how children end
    boot.raise_to_hard()
    server = AgentServer(in_fd, out_fd, code)
    if STAYS in sys.argv:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        server.serve()
        server.await_supervisor()
    else:
        server.serve()
    sys.exit(0)
