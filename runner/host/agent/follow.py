"""One run on this host as a link sees it: its files, and the door of its supervisor."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from typing import Any, Dict, List, Optional

from runner.core.codec import decode
from runner.core.model.order import Order
from runner.core.protocol.events import StopCause
from runner.core.protocol.frames import Frame
from runner.core.protocol.paths import RunPaths
from runner.core.protocol.timing import UNRESPONSIVE_S
from runner.host.agent.handler import AgentContext, HandlerTable, RequestHandler
from runner.host.agent.log_reader import LogReader
from runner.host.process import procfs
from runner.host.storage import run_owner
from runner.host.storage.journal import has_ended, is_relaunch_pending
from runner.host.storage.run_folder import read_order, reserve_attempt
from runner.host.storage.run_lock import RunLock
from runner.host.supervisor.recovery import recover_orphaned

COMMAND_FIELDS = ("cause", "reason", "peer", "nodes")
"""What may be said with a word."""

RECONNECT_S, RECONNECT_PENDING_S = 2.0, 0.2
"""How often a door is tried that nobody opens; with something to say, soon again."""


class FollowedRun:
    """A run whose supervisor is spoken to, and whose end is seen to.

    Attributes:
        read_only: Whether it is only read: then nobody is told that we are here, and what two dead
            keepers left is left alone.
    """

    def __init__(self, folder: RunPaths, order: Order, *, read_only: bool = False) -> None:
        self.log_reader = LogReader(folder)
        self.ended = False
        self.read_only = read_only
        self._folder = folder
        self._order = order
        self._run_lock = RunLock(order.run_id, order.node)
        self._socket = self._run_lock.connect()
        self._next_connect = 0.0
        self._unresponsive_at: Optional[float] = None
        self._user_stop = False
        self.ended = self._superseded  # whoever is at the door hears of a stop all the same
        self._pending: List[bytes] = []

    def send_command(self, command: str, **fields: Any) -> None:
        """Say something to the supervisor: that we are here, if it is; all else until it hears."""
        now = time.monotonic()
        self._user_stop = self._user_stop or fields.get("cause") == StopCause.USER.value
        if command == "stop" and self._unresponsive_at is None:
            self._unresponsive_at = now + self._order.grace_s + UNRESPONSIVE_S
        elif command == "kill":
            self._unresponsive_at = min(
                self._unresponsive_at or now + UNRESPONSIVE_S, now + UNRESPONSIVE_S
            )
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
            return False  # it takes nothing: stopped, or stuck
        except OSError:
            self._socket = None
            return False

    def close(self) -> None:
        """Say no more."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def check_ended(self) -> None:
        """See whether the supervisor ended; if nobody closed its record, do so."""
        if self.ended:
            return
        if self._socket is not None and not self._run_lock.peer_closed(self._socket):
            self._flush()
            self._kill_unresponsive()
            return
        self._socket = None
        lock = self._run_lock.try_lock()
        if lock is None and self._superseded and not self._pending:
            self.ended = True
            return
        if lock is None:  # its guardian may be at it, or its door was too full
            self._kill_unresponsive()
            self.try_connect()
            return
        if run_owner.live_owner_pids(
            self._folder
        ):  # somebody emptied /tmp: soon there is a new door
            os.close(lock)
            self._kill_unresponsive()
            self.try_connect()
            return
        if not self.read_only and not has_ended(self._folder, self._order):
            recover_orphaned(self._folder, self._order)
        self._run_lock.remove_files()
        os.close(lock)
        self.ended = True

    @property
    def _superseded(self) -> bool:
        """Whether this attempt is over, and another one on in its place."""
        if not self._order.relaunches_left:
            return False
        current = read_order(self._folder)
        return current is not None and current.attempt > self._order.attempt

    def try_connect(self, *, force: bool = False) -> None:
        """Try the door now and then, or `force`."""
        now = time.monotonic()
        if force or now >= self._next_connect:
            self._next_connect = now + (RECONNECT_PENDING_S if self._pending else RECONNECT_S)
            self._socket = self._run_lock.connect()
            self._flush()

    def _kill_unresponsive(self) -> None:
        """Kill a supervisor that was told to stop and did not, then its guardian.

        A process that was stopped or hangs in the kernel hears nothing; the kernel drops its lock
        when it dies, and the next one to look closes the record.
        """
        if self._unresponsive_at is None or time.monotonic() < self._unresponsive_at:
            return
        self._unresponsive_at = time.monotonic() + UNRESPONSIVE_S
        if not self._user_stop and is_relaunch_pending(self._folder, self._order):
            return  # its part is ended; it waits for the others
        holder_pids = self._run_lock.holder_pids() or run_owner.live_owner_pids(self._folder)
        processes = procfs.table()
        supervisor_pids = [
            pid
            for pid in holder_pids
            if not any(p.ppid == pid for p in _select(processes, holder_pids))
        ]
        procfs.signal_all(supervisor_pids, signal.SIGKILL)
        procfs.signal_all(holder_pids, signal.SIGCONT)


def _select(processes: Dict[int, procfs.Process], pids: Any) -> Any:
    return [processes[pid] for pid in pids if pid in processes]


class FollowHandler(RequestHandler):
    """The run that this link's controller follows."""

    def __init__(self, context: AgentContext) -> None:
        super().__init__(context)
        self._run: Optional[FollowedRun] = None

    def handlers(self) -> HandlerTable:
        """Return what answers each kind of request."""
        return {
            "follow": self._follow_existing,
            "read": lambda frame: self._require_run().log_reader.submit(frame.data),
            "command": self._send_command,
            "ping": self._ping,
        }

    @property
    def busy(self) -> bool:
        """Whether something of the run may be new."""
        return self._run is not None and not self._run.log_reader.idle

    def advance(self) -> None:
        """See to the run's end, and answer what can be answered."""
        if self._run is None:
            return
        with contextlib.suppress(OSError):  # a disk that hangs up for a moment
            self._run.check_ended()
        for data, payload in self._run.log_reader.poll(ended=self._run.ended):
            self.context.reply("data", data, payload)

    def follow(self, folder: RunPaths, order: Order, *, read_only: bool = False) -> None:
        """Speak to the supervisor of a run from now on, or only read."""
        self._run = FollowedRun(folder, order, read_only=read_only)
        self.context.followed_workdir = order.workdir
        if order.disconnect_s:  # then the supervisor gives the controller up as well
            self.context.controller_timeout_s = min(
                self.context.controller_timeout_s, order.disconnect_s
            )

    def try_connect(self) -> None:
        """Try the supervisor's door: it should be there by now."""
        self._require_run().try_connect(force=True)

    def stop(self, reason: str, cause: StopCause) -> None:
        """End the run that is followed."""
        self._require_run().send_command("stop", reason=reason, cause=cause.value)

    def _follow_existing(self, frame: Frame) -> None:
        """Follow a run that another link started, or was to start."""
        order = decode(Order, frame.data["order"])
        folder = RunPaths(order.workdir, order.run_id, order.node)
        if frame.data.get("claim") and reserve_attempt(folder, order.attempt):
            self.context.refuse(frame, "its order had not arrived")
            return
        if not os.path.isdir(folder.root):
            self.context.refuse(frame, f"there is no run {order.run_id} in {order.workdir}")
            return
        if not os.path.isdir(folder.attempt_folder(order.attempt)):
            self.context.refuse(frame, f"attempt {order.attempt} of it has not begun here")
            return
        run_owner.require_local(folder)
        self.follow(folder, order, read_only=bool(frame.data.get("read_only")))
        self.context.reply("following", {"id": frame.data["id"]})

    def _require_run(self) -> FollowedRun:
        if self._run is None:
            raise RuntimeError("this link follows no run yet")
        return self._run

    def _send_command(self, frame: Frame) -> None:
        command = frame.data["command"]
        if self.context.jobs and self._run is None and command != "detach":
            self.context.jobs.cancel_all("it was told to stop before its start")
            return
        fields = {name: frame.data[name] for name in COMMAND_FIELDS if name in frame.data}
        self._require_run().send_command(command, **fields)
        self.context.reply("command_sent", {"id": frame.data["id"]})

    def _ping(self, frame: Frame) -> None:
        if self._run is not None and not self._run.read_only:
            self._run.send_command("renew_lease")
        clocks = {"mono": time.monotonic(), "wall": time.time()}
        self.context.reply("pong", {"id": frame.data["id"], **clocks})
