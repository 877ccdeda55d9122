"""Follow requests: pass commands to a run's supervisor, notice its end, and read its files."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import select
import signal
import socket
import time
from dataclasses import replace
from typing import Any, List, Optional

from runner.core.wire.codec import Frame, decode
from runner.core.wire.order import Order
from runner.core.wire.paths import DUMP_END, STACKS_LOG, RunPaths
from runner.core.wire.states import Reason
from runner.core.wire.timing import ENGINE_TIMEOUT_S, UNRESPONSIVE_S
from runner.host.agent.server import RequestHandler
from runner.host.agent.stream import LogStream
from runner.host.process import procfs
from runner.host.process.jobs import POLL_S, Job, checkpoint, in_loop, pause
from runner.host.ranks import stacks
from runner.host.storage import run_owner
from runner.host.storage.permissions import find_exposure
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

DUMP_POLL_S = 0.2
DUMP_MARGIN_S = 5.0
SEND_TIMEOUT_S = 1.0  # for a supervisor whose buffer is full: it is stopped, or stuck


class Handler(RequestHandler):
    at_once = frozenset({"follow", "stream", "command"})

    _watch: Optional[Job] = None
    _stream: Optional[Job] = None
    _join: Optional[Job] = None  # while it lives, what is asked is about a run to be followed

    def on_follow(self, frame: Frame) -> None:
        """Follow a run that another agent started, or was to start."""
        self.end_stream()
        self._join = self.agent.start(frame, self._follow_found)

    def _follow_found(self, frame: Frame) -> None:
        order = decode(Order, frame.data["order"])
        folder = RunPaths(order.workdir, order.run_id, order.node)
        read_only = bool(frame.data.get("read_only"))
        by_launch = bool(frame.data.get("by_launch"))
        if frame.data.get("claim") and reserve_attempt(folder, order.attempt):
            raise ValueError("its order had not arrived")
        if not os.path.isdir(folder.root):
            raise ValueError(f"there is no run {order.run_id} in {order.workdir}")
        if not os.path.isdir(folder.attempt_folder(order.attempt)):
            raise ValueError(f"attempt {order.attempt} of it has not begun here")
        if exposure := find_exposure(order.workdir):
            raise ValueError(f"cluster.workdir: {exposure}")
        if not read_only:
            run_owner.require_local(folder)
        if recorded := read_order(folder):  # another host may have told the controller of ours
            left = order.relaunches_left
            order = replace(recorded, attempt=order.attempt, relaunches_left=left)
        run = FollowedRun(RunSocket(folder), order, read_only=read_only, by_launch=by_launch)
        run.ended = _is_superseded(folder, order)  # a stop reaches the later attempt as well
        in_loop(lambda: self.follow(run))
        self.agent.answer(frame, "following")

    def follow(self, run: FollowedRun) -> None:
        if self._watch is not None:
            self._watch.is_cancelled = True
        agent = self.agent
        agent.followed = run
        self._watch = agent.jobs.start(run.watch)
        limit_s = run.order.disconnect_s
        if limit_s:  # by then the supervisor has given up the controller, too
            agent.controller_timeout_s = min(agent.controller_timeout_s, limit_s)

    @property
    def _is_joining(self) -> bool:
        return self._join is not None and self._join.is_alive()

    def _followed(self) -> FollowedRun:
        """Return the run that is followed; raise RuntimeError if there is none."""
        while self._is_joining:
            pause(POLL_S)
        if self.agent.followed is None:
            raise RuntimeError("this agent follows no run yet")
        return self.agent.followed

    def on_stream(self, frame: Frame) -> None:
        """Send the logs as they are, if `once`; else the events and logs as they grow.

        It takes the place of the stream before.
        """
        self.end_stream()
        self._stream = self.agent.start(frame, self._send_stream, has_answer=False)

    def _send_stream(self, frame: Frame) -> None:
        run = self._followed()
        send = functools.partial(self.agent.answer, frame)
        stream = LogStream(run.folder, frame.data, self.agent.credit, send)
        if frame.data["once"]:
            stream.send_once()
        else:
            stream.follow(lambda: run.ended)
        self.agent.answer(frame, "streamed")

    def end_stream(self) -> None:
        if self._stream is not None:
            self._stream.is_cancelled = True

    def on_command(self, frame: Frame) -> None:
        """Pass a command to the supervisor; a stop before the start cancels that."""
        is_early = self.agent.followed is None and not self._is_joining
        may_cancel = is_early and frame.data["command"] != "detach"
        error = ValueError("a stop was requested before its start")
        if may_cancel and self.agent.cancel_all(error):
            self.agent.answer(frame, "command_sent")
            return
        self.agent.start(frame, self._pass_on, has_answer=False)

    def _pass_on(self, frame: Frame) -> None:
        fields = {name: frame.data[name] for name in COMMAND_FIELDS if name in frame.data}
        if self._followed().send(frame.data["command"], **fields):
            self.agent.answer(frame, "command_sent")

    def on_dump_stacks(self, frame: Frame) -> None:
        """Have the stacks of a run's ranks dumped; the answer is empty for one that has ended.

        It is what the supervisor adds to its log: it knows then what its dump disturbs.
        """
        folder = self.agent.run_folder(frame)
        order = read_order(folder)
        if order is None:
            raise ValueError(f"there is no run {frame.data['run_id']} in {self.agent.workdir}")
        text = ""
        if not has_ended(folder, order):
            log = folder.stream_log(order.attempt, STACKS_LOG, "out")
            before = len(procfs.read_text(log))
            command = {"command": "dump_stacks", "reason": str(frame.data["reason"])}
            if not give(RunSocket(folder), json.dumps(command).encode() + b"\n"):
                raise ValueError("its supervisor does not answer")
            deadline = time.monotonic() + stacks.DUMP_TIMEOUT_S + DUMP_MARGIN_S
            while not text.endswith(DUMP_END) and not has_ended(folder, order):
                if time.monotonic() >= deadline:
                    raise ValueError("its supervisor dumped no stacks in time")
                pause(DUMP_POLL_S)
                text = procfs.read_text(log)[before:]
        self.agent.answer(frame, "stacks_dumped", text.encode())


class FollowedRun:
    """A run on this host, and its supervisor.

    It has `ended` when supervisor and guardian are gone, or another attempt has taken over.
    `disk_wait_s` is for how long the disk has not answered the supervisor. With `read_only`, a
    record without an end stays as it is.
    """

    def __init__(
        self,
        run_socket: RunSocket,
        order: Order,
        *,
        read_only: bool = False,
        by_launch: bool = False,
    ) -> None:
        self.folder = run_socket.folder
        self.disk_wait_s = 0.0
        self.ended = False
        self.order = order
        self._read_only = read_only
        self._by_launch = by_launch  # the controller started the run, and is to tell of its end
        self._run_socket = run_socket
        self._connection = run_socket.connect()  # on which the supervisor tells of its disk
        self._untaken: List[str] = []  # commands
        self._kill_at: Optional[float] = None  # when a stop has not been heard
        self._user_stop = False

    def send(self, command: str, **fields: Any) -> bool:
        """Have the supervisor take a command, as soon as it can be reached; return False if never.

        Of a line that is cut off, nothing counts.
        """
        now = time.monotonic()
        if command in ("stop", "kill") and decode(Reason, fields["reason"]).is_by_user:
            self._user_stop = True
        if command == "stop" and self._kill_at is None:
            self._kill_at = now + self.order.grace_s + _unresponsive_s(self.order)
        elif command == "kill":
            deadline = now + _unresponsive_s(self.order)
            self._kill_at = min(self._kill_at or deadline, deadline)
        line = self._line(command, **fields)
        self._untaken.append(command)
        try:
            while not give(self._run_socket, line):
                if self.ended:
                    return False
                pause(POLL_S)
        finally:
            self._untaken.remove(command)
        return True

    def renew_lease(self) -> None:
        connection = self._connection
        if connection is not None and not self._read_only:
            with contextlib.suppress(OSError):
                connection.send(self._line("renew_lease"))

    def _line(self, command: str, **fields: Any) -> bytes:
        message = {"command": command, "attempt": self.order.attempt, "by_launch": self._by_launch}
        return json.dumps({**message, **fields}).encode() + b"\n"

    def watch(self) -> None:
        """Take what the supervisor tells; return when the attempt is over and its end on record."""
        was_cut = False  # then the next connection may be one to a later attempt, or a guardian
        while not self.ended:
            if self._connection is not None and not self._receive(self._connection):
                self._connection = None
                was_cut = True
            is_alone = self._connection is None
            if (is_alone or was_cut) and self._is_over(alone=is_alone):
                self.ended = True
                return
            if is_alone:  # its guardian is still at work, or its backlog is full
                pause(POLL_S)
                self._connection = self._run_socket.connect()
            self._kill_unresponsive()

    def _receive(self, connection: socket.socket) -> bool:
        """Take what the supervisor says about its host, soon; return False if it is gone."""
        checkpoint()
        try:
            if not select.select([connection], [], [], POLL_S)[0]:
                return True
            lines = connection.recv(4096).splitlines()
        except OSError:
            return False
        for line in lines:  # of one that is cut off, the next counts
            with contextlib.suppress(ValueError, KeyError, TypeError):
                self.disk_wait_s = float(json.loads(line)["disk_wait_s"])
        return bool(lines)

    def _is_over(self, *, alone: bool) -> bool:
        """Return whether this attempt is over; complete the record of one without a supervisor.

        One that was superseded is over once no command waits for the later one.
        """
        with contextlib.suppress(OSError):  # a disk may fail for a moment
            lock = run_owner.take_over(self.folder) if alone else None
            if lock is None:
                return _is_superseded(self.folder, self.order) and not self._untaken
            with lock:
                if not self._read_only and not has_ended(self.folder, self.order):
                    recover_orphaned(self.folder, self.order)
            return True
        return False

    def _kill_unresponsive(self) -> None:
        """Kill a supervisor that does not react to a stop, and let its guardian record the end.

        A process that was stopped (SIGSTOP) or hangs in the kernel reads no command; the kernel
        frees its socket when it dies.
        """
        now = time.monotonic()
        if self._kill_at is None or now < self._kill_at:
            return
        self._kill_at = now + _unresponsive_s(self.order)
        if self.disk_wait_s:
            self.disk_wait_s = 0.0  # it reacts, and waits for its disk; it has to say so again
            return
        if not self._user_stop and is_relaunch_pending(self.folder, self.order):
            return  # its attempt has ended; it waits for other hosts
        pids = run_owner.live_owner_pids(self.folder)
        processes = procfs.table()
        guardians = {processes[pid].ppid for pid in pids if pid in processes}
        procfs.signal_all([pid for pid in pids if pid not in guardians], signal.SIGKILL)
        procfs.signal_all(pids, signal.SIGCONT)


def give(run_socket: RunSocket, line: bytes) -> bool:
    """Give a command to a supervisor; return whether it could be reached."""
    connection = run_socket.connect()
    if connection is None:
        return False
    with connection, contextlib.suppress(OSError):
        connection.settimeout(SEND_TIMEOUT_S)
        connection.sendall(line)
        return True
    return False


def _unresponsive_s(order: Order) -> float:
    """Return how long a stop may take beyond the grace; an engine has a container to remove."""
    removes = order.container is not None and order.container.engine
    return UNRESPONSIVE_S + (ENGINE_TIMEOUT_S if removes else 0.0)


def _is_superseded(folder: RunPaths, order: Order) -> bool:
    """Return whether this attempt is over, and a later one has begun here."""
    current = read_order(folder) if order.relaunches_left else None
    return current is not None and current.attempt > order.attempt
