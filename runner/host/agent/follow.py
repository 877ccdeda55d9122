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
from runner.core.wire.order import Order
from runner.core.wire.paths import RunPaths
from runner.core.wire.states import Reason
from runner.core.wire.timing import ENGINE_TIMEOUT_S, UNRESPONSIVE_S
from runner.host.agent.server import IDLE_POLL_S, AgentContext, RequestHandler
from runner.host.agent.stream import LogStream
from runner.host.process import procfs
from runner.host.process.file_worker import Submit
from runner.host.process.jobs import Job, in_loop
from runner.host.storage import run_owner
from runner.host.storage.run_folder import (
    has_ended,
    is_relaunch_pending,
    read_order,
    reserve_attempt,
)
from runner.host.storage.run_owner import RunSocket
from runner.host.supervisor.recovery import recover_orphaned

COMMAND_FIELDS = ("reason", "peer", "nodes", "signal")
"""The fields that a command may have."""

NEVER = float("inf")
RECONNECT_S = 2.0  # between tries
RECONNECT_PENDING_S = 0.2  # with commands pending


class Handler(RequestHandler):
    """The run that this agent's controller follows."""

    at_once = frozenset({"follow", "stream", "command"})

    _run: Optional[FollowedRun] = None
    by_launch = False  # whether the controller started the run, and is to tell of its end

    def __init__(self, context: AgentContext) -> None:
        super().__init__(context)
        self._stream: Optional[Job] = None
        self._deferred: Optional[List[Frame]] = None  # about a run that is not followed yet

    def on_follow(self, frame: Frame) -> None:
        """Follow a run that another agent started, or was to start."""
        self._deferred = []
        self.by_launch = bool(frame.data.get("by_launch"))
        self.context.start(frame, self._join, self._take_deferred)

    def _join(self, frame: Frame) -> None:
        order = decode(Order, frame.data["order"])
        folder = RunPaths(order.workdir, order.run_id, order.node)
        read_only = bool(frame.data.get("read_only"))
        if frame.data.get("claim") and reserve_attempt(folder, order.attempt):
            raise ValueError("its order had not arrived")
        if not os.path.isdir(folder.root):
            raise ValueError(f"there is no run {order.run_id} in {order.workdir}")
        if not os.path.isdir(folder.attempt_folder(order.attempt)):
            raise ValueError(f"attempt {order.attempt} of it has not begun here")
        if not read_only:
            run_owner.require_local(folder)
        ended = _is_superseded(folder, order)  # a stop reaches the later attempt all the same
        run_socket = RunSocket(folder)
        in_loop(lambda: self.follow(run_socket, order, ended=ended, read_only=read_only))
        self.context.answer(frame, "following")

    def _take_deferred(self) -> None:
        deferred = self._deferred or []
        self._deferred = None
        for frame in deferred:
            try:
                (self.on_stream if frame.kind == "stream" else self.on_command)(frame)
            except RuntimeError as error:
                self.context.refuse(frame, error)

    def on_stream(self, frame: Frame) -> None:
        """Send the logs as they are, if `once`; else the events and logs as they grow.

        It takes the place of the stream before.
        """
        if self._deferred is not None:
            self._deferred.append(frame)
            return
        self._end_stream()
        run = self.require_run()
        send = functools.partial(self.context.answer, frame)
        stream = LogStream(run.folder, frame.data, self.context.credit, send)

        def work() -> None:
            if frame.data["once"]:
                stream.send_once()
            else:
                stream.follow(lambda: run.ended)
            self.context.answer(frame, "streamed")

        refuse = functools.partial(self.context.refuse, frame)
        self._stream = self.context.jobs.start(work, on_error=refuse)

    def _end_stream(self) -> None:
        if self._stream is not None:
            self._stream.is_cancelled = True

    def on_command(self, frame: Frame) -> None:
        """Pass a command to the supervisor; a stop before the start cancels that."""
        if self._deferred is not None:
            self._deferred.append(frame)
            return
        command = frame.data["command"]
        answer = functools.partial(self.context.answer, frame, "command_sent")
        stop = ValueError("a stop was requested before its start")
        if self._run is None and command != "detach" and self.context.cancel_all(stop):
            answer()
            return
        fields = {name: frame.data[name] for name in COMMAND_FIELDS if name in frame.data}
        self.require_run().send_command(command, answer, by_launch=self.by_launch, **fields)

    @property
    def disk_wait_s(self) -> float:
        """For how long the disk has not answered the supervisor."""
        return self._run.disk_wait_s if self._run is not None else 0.0

    def advance(self) -> None:
        """Notice the run's end."""
        if self._run is not None:
            self._run.check_ended()

    def renew_lease(self) -> None:
        """Renew the controller lease of the run, unless it is only read."""
        if self._run is not None and not self._run.read_only:
            self._run.send_command("renew_lease", by_launch=self.by_launch)

    def follow(
        self, run_socket: RunSocket, order: Order, *, ended: bool = False, read_only: bool = False
    ) -> FollowedRun:
        """Follow a run from now on, or only read it."""
        self._end_stream()
        start = self.context.jobs.start
        run = FollowedRun(run_socket, order, start, ended=ended, read_only=read_only)
        self._run = run
        context = self.context
        context.followed_workdir = order.workdir
        if order.disconnect_s:  # by then the supervisor has given up the controller, too
            context.controller_timeout_s = min(context.controller_timeout_s, order.disconnect_s)
        return run

    def require_run(self) -> FollowedRun:
        """Return the run that is followed; raise RuntimeError if there is none."""
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
        self.folder = run_socket.folder
        self.disk_wait_s = 0.0
        self._submit = submit
        self._next_examination = 0.0
        self.read_only = read_only  # then a record without an end stays as it is
        self._order = order
        self._run_socket = run_socket
        self._socket = run_socket.connect()
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
        if command in ("stop", "kill") and decode(Reason, fields["reason"]).is_by_user:
            self._user_stop = True
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
            self._socket = None
            self._was_cut = True
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
            lock = run_owner.take_over(self.folder) if alone else None
            if lock is None:
                return None if _is_superseded(self.folder, self._order) else False
            with lock:
                if not self.read_only and not has_ended(self.folder, self._order):
                    recover_orphaned(self.folder, self._order)
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
        if not self._user_stop and is_relaunch_pending(self.folder, self._order):
            return  # its attempt has ended; it waits for other hosts
        pids = run_owner.live_owner_pids(self.folder)
        processes = procfs.table()
        guardians = {processes[pid].ppid for pid in pids if pid in processes}
        procfs.signal_all([pid for pid in pids if pid not in guardians], signum)
        procfs.signal_all(pids, signal.SIGCONT)


def _unresponsive_s(order: Order) -> float:
    """Return how long a stop may take beyond the grace; an engine has a container to remove."""
    removes = order.container is not None and order.container.engine
    return UNRESPONSIVE_S + (ENGINE_TIMEOUT_S if removes else 0.0)


def _is_superseded(folder: RunPaths, order: Order) -> bool:
    """Return whether this attempt is over, and a later one has begun here."""
    current = read_order(folder) if order.relaunches_left else None
    return current is not None and current.attempt > order.attempt
