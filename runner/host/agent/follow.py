"""Follow requests: pass commands to a run's supervisor, notice its end, and read its files."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import socket
import time
from typing import Any, Callable, List, NamedTuple, Optional

from runner.core.wire.codec import Frame, decode
from runner.core.wire.events import StopCause
from runner.core.wire.order import Order
from runner.core.wire.paths import RunPaths
from runner.core.wire.timing import ENGINE_TIMEOUT_S, UNRESPONSIVE_S
from runner.host.agent.log_reader import Answer, LogReader
from runner.host.agent.request_queue import LoopCall, RequestSteps
from runner.host.agent.server import BUSY_POLL_S, IDLE_POLL_S, AgentContext, RequestHandler
from runner.host.process import procfs
from runner.host.process.file_worker import Submit
from runner.host.storage import run_owner
from runner.host.storage.run_folder import (
    has_ended,
    is_relaunch_pending,
    read_order,
    reserve_attempt,
)
from runner.host.storage.run_owner import RunSocket
from runner.host.supervisor.recovery import recover_orphaned

COMMAND_FIELDS = ("cause", "reason", "peer", "nodes", "signal")
"""The fields that a command may have."""

NEVER = float("inf")
RECONNECT_S, RECONNECT_PENDING_S = 2.0, 0.2  # between tries; with commands pending


class Handler(RequestHandler):
    """The run that this agent's controller follows."""

    _run: Optional[FollowedRun] = None
    by_launch = False  # whether the controller started the run, and is to tell of its end

    def __init__(self, context: AgentContext) -> None:
        super().__init__(context)
        self._polling, self._next_poll = False, 0.0
        self._is_joining = False  # what comes next is about the run that will be followed

    def on_follow(self, frame: Frame) -> RequestSteps:
        """Follow a run that another agent started, or was to start."""
        self._is_joining = True
        self.by_launch = bool(frame.data.get("by_launch"))
        return self._join(frame)

    def _join(self, frame: Frame) -> RequestSteps:
        order = decode(Order, frame.data["order"])
        folder = RunPaths(order.workdir, order.run_id, order.node)
        try:
            if frame.data.get("claim") and reserve_attempt(folder, order.attempt):
                raise ValueError("its order had not arrived")
            if not os.path.isdir(folder.root):
                raise ValueError(f"there is no run {order.run_id} in {order.workdir}")
            if not os.path.isdir(folder.attempt_folder(order.attempt)):
                raise ValueError(f"attempt {order.attempt} of it has not begun here")
            if not frame.data.get("read_only"):
                run_owner.require_local(folder)
            ended = _is_superseded(folder, order)  # a stop reaches the later attempt all the same
            yield functools.partial(self._begin, frame, RunSocket(folder), order, ended=ended)
        finally:
            self._is_joining = False

    def _begin(self, frame: Frame, run_socket: RunSocket, order: Order, *, ended: bool) -> None:
        self.follow(run_socket, order, ended=ended, read_only=bool(frame.data.get("read_only")))
        self.context.answer(frame, "following")

    def on_read(self, frame: Frame) -> Optional[RequestSteps]:
        """Read a file of the run; the answer may come much later."""
        return self._once_joined(self._read, frame)

    def _read(self, frame: Frame) -> None:
        self._require_run().log_reader.submit(frame.data)
        self._next_poll = 0.0

    def on_command(self, frame: Frame) -> Optional[RequestSteps]:
        """Pass a command to the supervisor; a stop before the start cancels that."""
        return self._once_joined(self._pass_on, frame)

    def _once_joined(self, take: Callable[[Frame], None], frame: Frame) -> Optional[RequestSteps]:
        """Take a request now, or in steps where the run is not followed yet."""
        if self._is_joining:
            return _call_in_loop(functools.partial(take, frame))
        take(frame)
        return None

    def _pass_on(self, frame: Frame) -> None:
        command = frame.data["command"]
        answer = functools.partial(self.context.answer, frame, "command_sent")
        if self.context.requests and self._run is None and command != "detach":
            self.context.requests.cancel_all("a stop was requested before its start")
            answer()
            return
        fields = {name: frame.data[name] for name in COMMAND_FIELDS if name in frame.data}
        self._require_run().send_command(command, answer, by_launch=self.by_launch, **fields)

    @property
    def busy(self) -> bool:
        """Whether the run may have new data."""
        return self._run is not None and not self._run.log_reader.idle

    @property
    def disk_wait_s(self) -> float:
        """For how long the disk has not answered the supervisor."""
        return self._run.disk_wait_s if self._run is not None else 0.0

    def advance(self) -> None:
        """Notice the run's end, and answer pending reads; a disk that hangs holds up neither."""
        run, now = self._run, time.monotonic()
        if run is None:
            return
        run.check_ended()
        if not self._polling and now >= self._next_poll:
            self._polling = True
            self._next_poll = now + (BUSY_POLL_S if self.busy else self.context.idle_poll_s)
            poll = functools.partial(run.log_reader.poll, ended=run.ended)
            self.context.files.submit(poll, self._answer)

    def _answer(self, answers: List[Answer]) -> None:
        self._polling = False
        for data, payload in answers:
            self.context.reply("data", data, payload)

    def renew_lease(self) -> None:
        """Renew the controller lease of the run, unless it is only read."""
        if self._run is not None and not self._run.read_only:
            self._run.send_command("renew_lease", by_launch=self.by_launch)

    def follow(
        self, run_socket: RunSocket, order: Order, *, ended: bool = False, read_only: bool = False
    ) -> FollowedRun:
        """Follow a run from now on, or only read it."""
        submit = self.context.files.submit
        run = FollowedRun(run_socket, order, submit, ended=ended, read_only=read_only)
        self._run = run
        context = self.context
        context.followed_workdir = order.workdir
        if order.disconnect_s:  # by then the supervisor has given up the controller, too
            context.controller_timeout_s = min(context.controller_timeout_s, order.disconnect_s)
        return run

    def _require_run(self) -> FollowedRun:
        if self._run is None:
            raise RuntimeError("this agent follows no run yet")
        return self._run


class PendingCommand(NamedTuple):
    """A command that the supervisor has not taken, or only its beginning."""

    line: bytes
    on_sent: Callable[[], object]
    unsent: bytes  # the rest of the line, on this connection


class FollowedRun:
    """A run on this host and the connection to its supervisor.

    It has `ended` when supervisor and guardian are gone, or another attempt has taken over.
    `disk_wait_s` is for how long the disk has not answered the supervisor; `submit` takes what may
    wait for it here.
    """

    def __init__(
        self,
        run_socket: RunSocket,
        order: Order,
        submit: Submit,
        *,
        ended: bool = False,
        read_only: bool = False,
    ) -> None:
        self.log_reader = LogReader(run_socket.folder)
        self.disk_wait_s = 0.0
        self._submit, self._next_examination = submit, 0.0
        self.read_only = read_only  # then a record without an end stays as it is
        self._order = order
        self._run_socket, self._socket = run_socket, run_socket.connect()
        self._was_cut = False  # whether a supervisor has closed a connection
        self._next_connect = 0.0
        self._unresponsive_at: Optional[float] = None
        self._user_stop = self._term_sent = False
        self._pending: List[PendingCommand] = []
        self.ended = ended

    def send_command(
        self, command: str, on_sent: Callable[[], object] = int, **fields: Any
    ) -> None:
        """Send a command to the supervisor, now or when it can be reached; call `on_sent` then.

        The renewal of the lease is sent now or not at all.
        """
        now = time.monotonic()
        self._user_stop = self._user_stop or fields.get("cause") == StopCause.USER.value
        if command == "stop" and self._unresponsive_at is None:
            self._unresponsive_at = now + self._order.grace_s + _unresponsive_s(self._order)
        elif command == "kill":
            deadline = now + _unresponsive_s(self._order)
            self._unresponsive_at = min(self._unresponsive_at or deadline, deadline)
        message = json.dumps({"command": command, "attempt": self._order.attempt, **fields})
        line = message.encode() + b"\n"
        pending = PendingCommand(line, on_sent, line)
        if command != "renew_lease":
            self._pending.append(pending)
            self._next_connect = 0.0
            self._flush()
        elif not self._pending:
            self._pending.append(pending)
            self._flush()
            if pending in self._pending:
                self._pending.clear()

    def _flush(self) -> None:
        while self._pending and self._socket is not None:
            first = self._pending[0]
            try:
                sent = self._socket.send(first.unsent)
            except BlockingIOError:
                return  # its buffer is full: it is stopped, or stuck
            except OSError:
                self._socket = None
                return
            if sent < len(first.unsent):
                self._pending[0] = first._replace(unsent=first.unsent[sent:])
            else:
                self._pending.pop(0)
                first.on_sent()

    def check_ended(self) -> None:
        """Notice the end of the supervisor; if there is no end on record, record it."""
        if self.ended:
            return
        if self._socket is not None and not self._receive(self._socket):
            self._socket, self._was_cut = None, True
        if self._socket is not None:  # perhaps that of a later attempt, or its guardian's
            self._flush()
            self._kill_unresponsive()
        now = time.monotonic()
        if (self._socket is None or self._was_cut) and now >= self._next_examination:
            self._next_examination = NEVER
            examine = functools.partial(self._examine, alone=self._socket is None)
            self._submit(examine, self._on_examined)

    def _receive(self, connection: socket.socket) -> bool:
        """Take what the supervisor says about its host; return False if it is gone."""
        try:
            lines = connection.recv(4096).splitlines()
        except BlockingIOError:
            return True
        except OSError:
            return False
        for line in lines:  # of one that is cut off, the next counts
            with contextlib.suppress(ValueError, KeyError, TypeError):
                self.disk_wait_s = float(json.loads(line)["disk_wait_s"])
        return bool(lines)

    def _examine(self, *, alone: bool) -> Optional[bool]:
        """Complete the record of a run without a supervisor; return whether this attempt is over.

        None: it was superseded, which counts once no command is pending.
        """
        with contextlib.suppress(OSError):  # a disk may fail for a moment
            lock = run_owner.take_over(self._run_socket.folder) if alone else None
            if lock is None:
                return None if _is_superseded(self._run_socket.folder, self._order) else False
            with lock:
                if not self.read_only and not has_ended(self._run_socket.folder, self._order):
                    recover_orphaned(self._run_socket.folder, self._order)
            return True
        return False

    def _on_examined(self, over: Optional[bool]) -> None:
        self._next_examination = time.monotonic() + IDLE_POLL_S
        if over or (over is None and not self._pending):
            self.ended = True
        elif self._socket is None:  # its guardian is still at work, or its backlog is full
            if self._unresponsive_at is not None and not self._term_sent:
                self._term_sent = True  # the one way from another network namespace
                self._submit(functools.partial(self._signal_owner, signal.SIGTERM))
            self._kill_unresponsive()
            self.try_connect()

    def try_connect(self, *, force: bool = False) -> None:
        """Connect to the supervisor if it is time to, or with `force`."""
        now = time.monotonic()
        if force or now >= self._next_connect:
            self._next_connect = now + (RECONNECT_PENDING_S if self._pending else RECONNECT_S)
            self._socket = self._run_socket.connect()
            self._pending = [each._replace(unsent=each.line) for each in self._pending]
            self._flush()

    def _kill_unresponsive(self) -> None:
        """Kill a supervisor that does not react to a stop, and let its guardian record the end.

        A process that was stopped (SIGSTOP) or hangs in the kernel reads no command; the kernel
        frees its socket when it dies.
        """
        now = time.monotonic()
        if self._unresponsive_at is None or now < self._unresponsive_at:
            return
        self._unresponsive_at = now + _unresponsive_s(self._order)
        if self.disk_wait_s:
            self.disk_wait_s = 0.0  # it reacts, and waits for its disk; it has to say so again
        else:
            self._submit(functools.partial(self._signal_owner, signal.SIGKILL))

    def _signal_owner(self, signum: signal.Signals) -> None:
        if not self._user_stop and is_relaunch_pending(self._run_socket.folder, self._order):
            return  # its attempt has ended; it waits for other hosts
        pids = run_owner.live_owner_pids(self._run_socket.folder)
        processes = procfs.table()
        guardians = {processes[pid].ppid for pid in pids if pid in processes}
        procfs.signal_all([pid for pid in pids if pid not in guardians], signum)
        procfs.signal_all(pids, signal.SIGCONT)


def _unresponsive_s(order: Order) -> float:
    """Return how long a stop may take beyond the grace; an engine has a container to remove."""
    removes = order.container is not None and order.container.engine
    return UNRESPONSIVE_S + (ENGINE_TIMEOUT_S if removes else 0.0)


def _call_in_loop(call: LoopCall) -> RequestSteps:
    yield call


def _is_superseded(folder: RunPaths, order: Order) -> bool:
    """Return whether this attempt is over, and a later one has begun here."""
    current = read_order(folder) if order.relaunches_left else None
    return current is not None and current.attempt > order.attempt
