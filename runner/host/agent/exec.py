"""Exec requests: run a command of the user on this host."""

from __future__ import annotations

from runner.core.protocol.frames import Frame
from runner.host.agent.server import RequestHandler
from runner.host.process.command import CommandRun


class Handler(RequestHandler):
    """One command at a time, in the environment that the setup lines left."""

    def on_exec(self, frame: Frame) -> None:
        """Start the command; `window` is how many bytes of its output may be sent at first."""
        argv = list(frame.data["argv"])
        limit_s = float(frame.data["limit_s"])
        environ = self.context.require_facts().environ
        reply = self.context.reply
        command = CommandRun(frame.data["id"], argv, environ, limit_s, reply)
        command.window = int(frame.data["window"])
        self.children["command"] = command
        self.context.cache_code()

    def on_more_output(self, frame: Frame) -> None:
        """Let it send so many more bytes, which the controller has shown."""
        for command in self.children.values():
            command.window += int(frame.data["bytes"])

    def on_kill(self, _: Frame) -> None:
        """End the command early."""
        for command in self.children.values():
            command.kill()

    def advance(self) -> None:
        """Pass on its output, while the controller takes it."""
        for command in self.children.values():
            if self.context.can_send():
                command.advance()

    def close(self) -> None:
        """End the command."""
        for command in self.children.values():
            command.kill_and_wait()
