"""Follow requests: pass commands to a run's supervisor, notice its end, and read its files.

The log reader serves growing files by offset, so that no byte is lost or doubled.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from typing import Any, Dict, Iterator, List, Optional, Tuple

from runner.core.codec import decode
from runner.core.model.plan import Order
from runner.core.protocol.events import StopCause
from runner.core.protocol.frames import Frame
from runner.core.protocol.paths import RunPaths
from runner.core.protocol.timing import UNRESPONSIVE_S
from runner.host.agent.server import RequestHandler
from runner.host.process import procfs
from runner.host.storage import run_owner
from runner.host.storage.run_folder import (
    has_ended,
    is_relaunch_pending,
    read_order,
    reserve_attempt,
)
from runner.host.storage.run_owner import RunLock
from runner.host.supervisor.recovery import recover_orphaned

COMMAND_FIELDS = ("cause", "reason", "peer", "nodes")  # the fields that a command may have
RECONNECT_S, RECONNECT_PENDING_S = 2.0, 0.2  # between tries; with commands pending
MAX_READ = 1 << 20
IDLE_AFTER_S = 1.0  # without new data, files are read less often


class Handler(RequestHandler):
    """The run that this agent's controller follows."""

    _run: Optional[FollowedRun] = None

    def on_follow(self, frame: Frame) -> None:
        """Follow a run that another agent started, or was to start."""
        order = decode(Order, frame.data["order"])
        folder = RunPaths(order.workdir, order.run_id, order.node)
        if frame.data.get("claim") and reserve_attempt(folder, order.attempt):
            self.context.refuse(frame, "its order had not arrived")
        elif not os.path.isdir(folder.root):
            self.context.refuse(frame, f"there is no run {order.run_id} in {order.workdir}")
        elif not os.path.isdir(folder.attempt_folder(order.attempt)):
            self.context.refuse(frame, f"attempt {order.attempt} of it has not begun here")
        else:
            run_owner.require_local(folder)
            self.follow(folder, order, read_only=bool(frame.data.get("read_only")))
            self.context.answer(frame, "following")

    def on_read(self, frame: Frame) -> None:
        """Read a file of the run; the answer may come much later."""
        self._require_run().log_reader.submit(frame.data)

    def on_command(self, frame: Frame) -> None:
        """Pass a command to the supervisor; a stop before the start cancels that."""
        command = frame.data["command"]
        if self.context.jobs and self._run is None and command != "detach":
            self.context.jobs.cancel_all("a stop was requested before its start")
            return
        fields = {name: frame.data[name] for name in COMMAND_FIELDS if name in frame.data}
        self._require_run().send_command(command, **fields)
        self.context.answer(frame, "command_sent")

    @property
    def busy(self) -> bool:
        """Whether the run may have new data."""
        return self._run is not None and not self._run.log_reader.idle

    def advance(self) -> None:
        """Notice the run's end, and answer pending reads."""
        if self._run is None:
            return
        with contextlib.suppress(OSError):  # a disk may hang for a moment
            self._run.check_ended()
        for data, payload in self._run.log_reader.poll(ended=self._run.ended):
            self.context.reply("data", data, payload)

    def renew_lease(self) -> None:
        """Renew the controller lease of the run, unless it is only read."""
        if self._run is not None and not self._run.read_only:
            self._run.send_command("renew_lease")

    def follow(self, folder: RunPaths, order: Order, *, read_only: bool = False) -> FollowedRun:
        """Follow a run from now on, or only read it."""
        self._run = FollowedRun(folder, order, read_only=read_only)
        context = self.context
        context.followed_workdir = order.workdir
        if order.disconnect_s:  # by then the supervisor has given up the controller, too
            context.controller_timeout_s = min(context.controller_timeout_s, order.disconnect_s)
        return self._run

    def _require_run(self) -> FollowedRun:
        if self._run is None:
            raise RuntimeError("this agent follows no run yet")
        return self._run


class FollowedRun:
    """A run on this host and the connection to its supervisor.

    It has `ended` when supervisor and guardian are gone, or another attempt has taken over.
    """

    def __init__(self, folder: RunPaths, order: Order, *, read_only: bool = False) -> None:
        self.log_reader = LogReader(folder)
        self.read_only = read_only  # then a record without an end stays as it is
        self._folder = folder
        self._order = order
        self._run_lock = RunLock(folder)
        self._socket = self._run_lock.connect()
        self._next_connect = 0.0
        self._unresponsive_at: Optional[float] = None
        self._user_stop = False
        self._pending: List[bytes] = []
        self.ended = self._superseded  # a stop reaches the later attempt all the same

    def send_command(self, command: str, **fields: Any) -> None:
        """Send a command to the supervisor, now or when it can be reached.

        The renewal of the lease is sent now or not at all.
        """
        now = time.monotonic()
        self._user_stop = self._user_stop or fields.get("cause") == StopCause.USER.value
        if command == "stop" and self._unresponsive_at is None:
            self._unresponsive_at = now + self._order.grace_s + UNRESPONSIVE_S
        elif command == "kill":
            deadline = now + UNRESPONSIVE_S
            self._unresponsive_at = min(self._unresponsive_at or deadline, deadline)
        message = json.dumps({"command": command, "attempt": self._order.attempt, **fields})
        line = message.encode() + b"\n"
        if command != "renew_lease":
            self._pending.append(line)
            self._next_connect = 0.0
        elif not self._pending:
            self._send(line)
        self._flush()

    def _flush(self) -> None:
        while self._pending and self._send(self._pending[0]):
            del self._pending[0]

    def _send(self, line: bytes) -> bool:
        if self._socket is None:
            return False
        try:
            return self._socket.send(line) == len(line)
        except BlockingIOError:
            return False  # its buffer is full: it is stopped, or stuck
        except OSError:
            self._socket = None
            return False

    def check_ended(self) -> None:
        """Notice the end of the supervisor; if there is no end on record, record it."""
        if self.ended:
            return
        if self._socket is not None and not self._run_lock.peer_closed(self._socket):
            self._flush()
            self._kill_unresponsive()
            return
        self._socket = None
        lock_fd = run_owner.take_over(self._folder)
        if lock_fd is not None:
            if not self.read_only and not has_ended(self._folder, self._order):
                recover_orphaned(self._folder, self._order)
            self._run_lock.remove_files()
            os.close(lock_fd)
        if lock_fd is not None or (self._superseded and not self._pending):
            self.ended = True
        else:  # its guardian is still at work, its backlog is full, or /tmp was emptied
            self._kill_unresponsive()
            self.try_connect()

    @property
    def _superseded(self) -> bool:
        """Whether this attempt is over, and a later one has begun here."""
        if not self._order.relaunches_left:
            return False
        current = read_order(self._folder)
        return current is not None and current.attempt > self._order.attempt

    def try_connect(self, *, force: bool = False) -> None:
        """Connect to the supervisor if it is time to, or with `force`."""
        now = time.monotonic()
        if force or now >= self._next_connect:
            self._next_connect = now + (RECONNECT_PENDING_S if self._pending else RECONNECT_S)
            self._socket = self._run_lock.connect()
            self._flush()

    def _kill_unresponsive(self) -> None:
        """Kill a supervisor that does not react to a stop, and let its guardian record the end.

        A process that was stopped (SIGSTOP) or hangs in the kernel reads no command; the kernel
        drops its lock when it dies.
        """
        if self._unresponsive_at is None or time.monotonic() < self._unresponsive_at:
            return
        self._unresponsive_at = time.monotonic() + UNRESPONSIVE_S
        if not self._user_stop and is_relaunch_pending(self._folder, self._order):
            return  # its attempt has ended; it waits for other hosts
        pids = self._run_lock.holder_pids() or run_owner.live_owner_pids(self._folder)
        processes = procfs.table()
        guardians = {processes[pid].ppid for pid in pids if pid in processes}
        procfs.signal_all([pid for pid in pids if pid not in guardians], signal.SIGKILL)
        procfs.signal_all(pids, signal.SIGCONT)


class LogReader:
    """Pending reads of one run; each is answered once, when there is data, or at the end."""

    def __init__(self, folder: RunPaths) -> None:
        self._folder = folder
        self._pending: List[Dict[str, Any]] = []
        self._last_data = time.monotonic()

    @property
    def idle(self) -> bool:
        """Whether files may be read less often."""
        return not self._pending or time.monotonic() - self._last_data > IDLE_AFTER_S

    def submit(self, request: Dict[str, Any]) -> None:
        """Queue a request: id, source ("events" or a log's stem), stream, attempt, offset, n.

        With `tail`, it begins that many lines before the end; with `since`, at the first line
        written in that many last seconds; with `wait` false, it is answered at once.
        """
        self._pending.append(request)
        self._last_data = time.monotonic()

    def poll(self, *, ended: bool) -> Iterator[Tuple[Dict[str, Any], bytes]]:
        """Yield the answers that are ready; once the run has `ended`, all are."""
        unanswered = []
        for request in self._pending:
            problem = ""
            try:
                chunk = self._read_chunk(request)
            except OSError as error:  # of a disk that may recover
                chunk, problem = b"", os.strerror(error.errno or 0)
            if not chunk and not ended and request.get("wait", True):
                unanswered.append(request)
                continue
            self._last_data = time.monotonic()
            reply = {"id": request["id"], "offset": request["offset"], "eof": not chunk}
            yield {**reply, **({"error": problem} if problem else {})}, chunk
        self._pending = unanswered

    def _read_chunk(self, request: Dict[str, Any]) -> bytes:
        if request["source"] == "events":
            path = self._folder.events
        else:
            path = self._folder.stream_log(request["attempt"], request["source"], request["stream"])
        try:
            descriptor = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            return b""
        try:
            if "tail" in request:
                request["offset"] = _tail_offset(descriptor, request.pop("tail"))
            if "since" in request:
                size = self._size_at(request, time.time() - float(request.pop("since")))
                request["offset"] = max(request["offset"], _next_line_start(descriptor, size))
            return os.pread(descriptor, min(request["n"], MAX_READ), request["offset"])
        finally:
            os.close(descriptor)

    def _size_at(self, request: Dict[str, Any], moment: float) -> int:
        """Return the size of a log at a moment, as sampled in `sizes.jsonl`."""
        name, size = f"{request['source']}.{request['stream']}", 0
        try:
            with open(self._folder.log_sizes(request["attempt"]), encoding="ascii") as file:
                for line in file:
                    with contextlib.suppress(ValueError, KeyError, TypeError):  # a torn line
                        sample = json.loads(line)
                        if sample["wall"] > moment:
                            break
                        size = int(sample["sizes"].get(name, size))
        except OSError:  # none yet
            pass
        return size


def _next_line_start(descriptor: int, offset: int) -> int:
    """Return where the first line begins, at `offset` or after it."""
    if offset == 0 or os.pread(descriptor, 1, offset - 1) == b"\n":
        return offset
    while True:
        block = os.pread(descriptor, MAX_READ, offset)
        newline = block.find(b"\n")
        if newline >= 0 or not block:
            return offset + max(newline + 1, 0)
        offset += len(block)


def _tail_offset(descriptor: int, lines: int) -> int:
    """Return where the last `lines` of a file begin."""
    offset = size = os.fstat(descriptor).st_size
    if lines <= 0:
        return size
    if offset and os.pread(descriptor, 1, offset - 1) == b"\n":
        offset -= 1  # the last line break begins no line
    while offset > 0:
        length = min(MAX_READ, offset)
        offset -= length
        block = os.pread(descriptor, length, offset)
        newline = len(block)
        while (newline := block.rfind(b"\n", 0, newline)) >= 0:
            lines -= 1
            if not lines:
                return offset + newline + 1
    return 0
