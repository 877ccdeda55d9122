"""Follow requests: read a run's files, and pass commands to its supervisor."""

from __future__ import annotations

import contextlib
import os
from typing import Optional

from runner.core.codec import decode
from runner.core.model.order import Order
from runner.core.protocol.frames import Frame
from runner.core.protocol.paths import RunPaths
from runner.host.agent.followed_run import FollowedRun
from runner.host.agent.handler import AgentContext, HandlerTable, RequestHandler
from runner.host.storage import run_owner
from runner.host.storage.run_folder import reserve_attempt

COMMAND_FIELDS = ("cause", "reason", "peer", "nodes")
"""The fields that a command may have."""


class Handler(RequestHandler):
    """The run that this agent's controller follows."""

    def __init__(self, context: AgentContext) -> None:
        super().__init__(context)
        self._run: Optional[FollowedRun] = None

    def handlers(self) -> HandlerTable:
        """Return the function for each kind of request."""
        return {
            "follow": self._follow_existing,
            "read": lambda frame: self._require_run().log_reader.submit(frame.data),
            "command": self._send_command,
        }

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
        self.context.followed_workdir = order.workdir
        if order.disconnect_s:  # by then the supervisor has given up the controller, too
            self.context.controller_timeout_s = min(
                self.context.controller_timeout_s, order.disconnect_s
            )
        return self._run

    def _follow_existing(self, frame: Frame) -> None:
        """Follow a run that another agent started, or was to start."""
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
            raise RuntimeError("this agent follows no run yet")
        return self._run

    def _send_command(self, frame: Frame) -> None:
        command = frame.data["command"]
        if self.context.jobs and self._run is None and command != "detach":
            self.context.jobs.cancel_all("a stop was requested before its start")
            return
        fields = {name: frame.data[name] for name in COMMAND_FIELDS if name in frame.data}
        self._require_run().send_command(command, **fields)
        self.context.reply("command_sent", {"id": frame.data["id"]})
