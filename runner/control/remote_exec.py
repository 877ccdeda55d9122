"""Remote command: one command on every host at once, and its result on each."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from runner.control.rpc.wait import WaitLoop
from runner.core.results import CommandResult
from runner.core.wire.codec import Frame
from runner.core.wire.timing import COMMAND_KILL_TIMEOUT_S

MAX_OUTPUT_BYTES = 4 << 20
"""Bytes kept of the output of one host; the rest is dropped, and reported as such."""

TIMEOUT_MARGIN_S = 15.0
"""How much longer than the command's limit a host may take to end it."""

OutputSink = Callable[[str, str, bytes], None]
"""Takes (node, stream, data) of a command's output."""


class RemoteCommand(WaitLoop):
    """One command on all hosts at once: an exec, or another `kind` with more `data`."""

    kind = "exec"
    data: Mapping[str, Any] = MappingProxyType({})
    payload = b""
    received_signal = 0  # the last one that asked to end it
    owes_answers = False

    def run(
        self,
        argv: Sequence[str],
        timeout_s: float,
        sink: OutputSink | None = None,
        is_full: Callable[[], bool] = lambda: False,
    ) -> None:
        """Return when it has ended everywhere, even after a signal; see `results`.

        With a `sink`, output is passed on as it comes and not kept; hosts wait while `is_full`.
        """
        self._sink = sink
        self._is_full = is_full
        self.results = {name: CommandResult(name) for name in self.sessions}
        request: dict[str, Any] = {"argv": [*argv], "limit_s": timeout_s, **self.data}
        for name, session in self.sessions.items():
            session.request(self.kind, request, self.payload)
            self._show(name, "running")
        self._deadline = time.monotonic() + timeout_s + TIMEOUT_MARGIN_S
        self.wait()

    def _pending(self) -> list[str]:
        return [name for name, result in self.results.items() if not result.is_done]

    def _tick(self) -> float:
        is_full = self._is_full()
        for session in self.sessions.values():
            session.hold(is_held=is_full)
        return super()._tick()

    def _on_late(self, name: str) -> None:
        self._on_lost(name, "it did not report in time that the command has ended")

    def _on_lost(self, name: str, reason: str) -> None:
        result = self.results[name]
        result.problem = f"lost: {reason}; the command may go on there"
        result.unverified = True
        result.lost = True
        self._show(name, "lost")

    def on_signal(self, signum: int) -> None:
        timeout_s = 0 if self.received_signal else COMMAND_KILL_TIMEOUT_S
        self._deadline = min(self._deadline, time.monotonic() + timeout_s)
        self.received_signal = signum
        for name in self._pending():
            self.sessions[name].request("kill")

    def _on_frame(self, name: str, frame: Frame) -> bool:
        result = self.results[name]
        if frame.kind == "data":
            stream = frame.data["file"]
            if self._sink:
                self._sink(name, stream, frame.payload)
                return False
            buffer = result.stdout if stream == "out" else result.stderr
            space = max(0, MAX_OUTPUT_BYTES - len(buffer))
            buffer += frame.payload[:space]
            result.truncated |= space < len(frame.payload)
        elif frame.kind == "exited":
            self._on_exited(result, frame.data)
            self._show(name, "ended")
        elif frame.kind == "refused":
            result.problem = f"cannot be started: {frame.data['reason']}"
            self._show(name, "failed")
        return False  # its own limit is its only deadline

    def _on_exited(self, result: CommandResult, reply: Mapping[str, Any]) -> None:
        result.exit_code = reply["code"]
        if survivors := reply["survivors"]:
            result.unverified = True
            result.problem = f"cannot be killed: PID {', '.join(map(str, survivors))}"
        elif reply["error"]:
            result.unverified = True
            result.problem = reply["error"]
        elif reply["timed_out"]:
            result.problem = "did not end in time and was killed"
        elif self.received_signal and result.exit_code == -signal.SIGKILL:
            result.problem = "interrupted"
