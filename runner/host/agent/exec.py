"""Commands of the user's on this host, as a link runs them."""

from __future__ import annotations

from typing import Optional, Tuple

from runner.core.protocol.frames import Frame
from runner.host.agent.handler import Duty, Handlers, Wire
from runner.host.process.command import Execution


class Commands(Duty):
    """One command at a time, in the environment that the setup lines left."""

    def __init__(self, wire: Wire) -> None:
        super().__init__(wire)
        self._execution: Optional[Execution] = None

    def handlers(self) -> Handlers:
        """Return what answers each kind of request."""
        return {
            "exec": self._exec,
            "kill": lambda _: self._execution.kill() if self._execution else None,
        }

    @property
    def pipes(self) -> Tuple[int, ...]:
        """What the command writes to."""
        return self._execution.pipes if self._execution else ()

    def advance(self) -> None:
        """Pass on what it wrote, while the controller takes it."""
        if self._execution is not None and self.wire.room():
            self._execution.advance()

    def close(self) -> None:
        """End it."""
        if self._execution is not None:
            self._execution.end()

    def _exec(self, frame: Frame) -> None:
        argv, limit_s = list(frame.data["argv"]), float(frame.data["limit_s"])
        environ = self.wire.asked().environ
        self._execution = Execution(frame.data["id"], argv, environ, limit_s, self.wire.reply)
