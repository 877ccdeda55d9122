"""Exec requests: run a command of the user on this host."""

from __future__ import annotations

from typing import Optional, Tuple

from runner.core.protocol.frames import Frame
from runner.host.agent.server import AgentContext, RequestHandler
from runner.host.process.command import CommandRun


class Handler(RequestHandler):
    """One command at a time, in the environment that the setup lines left."""

    def __init__(self, context: AgentContext) -> None:
        super().__init__(context)
        self._command: Optional[CommandRun] = None

    def on_exec(self, frame: Frame) -> None:
        """Start the command."""
        argv, limit_s = list(frame.data["argv"]), float(frame.data["limit_s"])
        environ = self.context.require_facts().environ
        self._command = CommandRun(frame.data["id"], argv, environ, limit_s, self.context.reply)

    def on_kill(self, _: Frame) -> None:
        """End the command early."""
        if self._command is not None:
            self._command.kill()

    @property
    def pipes(self) -> Tuple[int, ...]:
        """The pipes that the command writes to."""
        return self._command.pipes if self._command else ()

    def advance(self) -> None:
        """Pass on its output, while the controller takes it."""
        if self._command is not None and self.context.can_send():
            self._command.advance()

    def close(self) -> None:
        """End the command."""
        if self._command is not None:
            self._command.kill_and_wait()
