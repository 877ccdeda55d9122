"""Remote command: one command on every host at once, and its result on each."""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Protocol

from runner.control.rpc.wait import WaitLoop
from runner.core.dataclass import dataclass
from runner.core.model.results import CommandResult
from runner.core.protocol.frames import Frame, FrameError
from runner.core.protocol.timing import COMMAND_KILL_TIMEOUT_S

MAX_OUTPUT_BYTES = 4 << 20
"""Bytes kept of the output of one host; the rest is dropped, and reported as such."""

WINDOW_BYTES = 1 << 20
"""How far the output of one host may be ahead of what is shown of it."""

TIMEOUT_MARGIN_S = 15.0
"""How much longer than the command's limit a host may take to end it."""


MAX_UNTAKEN = 8
"""Chunks of input that a command may be behind before all that read the same wait for it."""


class Percent(Protocol):
    """Something that is read from its begin to its end."""

    @property
    def percent(self) -> int:
        """How much of it was read."""


@dataclass
class Feed:
    """The standard input of the command on some hosts: each chunk is read once, for all of them."""

    nodes: frozenset[str]
    chunks: Iterator[bytes]
    source: Percent  # of the chunks
    is_over: bool = False


OutputSink = Callable[[str, str, bytes], None]
"""Takes (node, stream, data) of a command's output."""


class RemoteCommand(WaitLoop):
    """One command on all hosts at once."""

    received_signal = 0  # the last one that asked to end it
    _sink: OutputSink | None = None

    def stream_to(self, sink: OutputSink, is_full: Callable[[], bool]) -> None:
        """Pass output on as it comes, instead of keeping it; hosts wait while `is_full`."""
        self._sink, self._is_full = sink, is_full

    def run(
        self,
        argv: Sequence[str],
        timeout_s: float,
        feeds: Sequence[Feed] = (),
        nodes: Collection[str] | None = None,
        *,
        keeps_code: bool = False,
    ) -> None:
        """Return when it has ended everywhere, even after a signal; see `results`.

        It runs on `nodes`, by default on all. What reading a feed raises is raised here; the
        commands then end with their connections. With `keeps_code`, hosts cache our code.
        """
        nodes = self.sessions if nodes is None else nodes
        self.results = {name: CommandResult(name) for name in nodes}
        self._shown_bytes = dict.fromkeys(nodes, 0)  # not yet reported to the host
        self._feeds, self._untaken_chunks = feeds, Counter[str]()
        self._command_ids: dict[str, int] = {}
        fed = {name for feed in feeds for name in feed.nodes}
        request: dict[str, Any] = {"argv": [*argv], "limit_s": timeout_s, "window": WINDOW_BYTES}
        request["keeps_code"] = keeps_code
        for name in nodes:
            request["takes_input"] = name in fed
            self._command_ids[name] = self.sessions[name].request("exec", request)
            self._show(name, "running")
        self._deadline = time.monotonic() + timeout_s + TIMEOUT_MARGIN_S
        self.wait()

    def _pending(self) -> list[str]:
        return [name for name, result in self.results.items() if not result.is_done]

    def _owes_answer(self, name: str) -> bool:
        del name
        return False  # a command may be silent up to its own limit

    def _tick(self) -> float:
        if self._sink is None or not self._is_full():
            for name, size in self._shown_bytes.items():
                if size >= WINDOW_BYTES // 2:
                    self.sessions[name].request("more_output", {"bytes": size})
                    self._shown_bytes[name] = 0
        has_sent = [self._send_chunk(feed) for feed in self._feeds]
        return 0.0 if any(has_sent) else super()._tick()

    def _send_chunk(self, feed: Feed) -> bool:
        """Send the next chunk to all that read a feed, if none is behind; return whether it did."""
        reading = [name for name in feed.nodes if not self.results[name].is_done]
        is_behind = any(
            self._untaken_chunks[name] >= MAX_UNTAKEN or self.sessions[name].unsent > WINDOW_BYTES
            for name in reading
        )
        if feed.is_over or is_behind or not reading:
            return False
        chunk = next(feed.chunks, b"")
        feed.is_over = not chunk
        for name in reading:
            self._untaken_chunks[name] += 1
            command = {"command": self._command_ids[name]}
            self.sessions[name].request("input", command, chunk)
            self._show(name, f"{feed.source.percent} %")
        return True

    def _on_late(self, name: str) -> None:
        self._on_lost(name, "it did not report in time that the command has ended")

    def _on_lost(self, name: str, reason: str) -> None:
        result = self.results[name]
        result.problem, result.unverified = f"lost: {reason}; the command may go on there", True
        self._show(name, "lost")

    def _on_signal(self, signum: int) -> None:
        timeout_s = 0 if self.received_signal else COMMAND_KILL_TIMEOUT_S
        self._deadline = min(self._deadline, time.monotonic() + timeout_s)
        self.received_signal = signum
        for name in self._pending():
            self.sessions[name].request("kill")

    def _on_frame(self, name: str, frame: Frame) -> bool:
        result = self.results[name]
        if frame.kind == "output":
            self._shown_bytes[name] += len(frame.payload)
            self._on_output(result, str(frame.data["stream"]), frame.payload)
        elif frame.kind == "input_taken":
            if not self._untaken_chunks[name]:
                raise FrameError("'input_taken' for input that it did not get")
            self._untaken_chunks[name] -= 1
        elif frame.kind == "exited":
            self._on_exit(result, frame.data)
            self._show(name, "ended")
        elif frame.kind == "refused":
            is_start = frame.data.get("id") in (None, self._command_ids[name])
            action = "be started" if is_start else "take its input"
            result.problem = f"cannot {action}: {frame.data['reason']}"
            self._show(name, "failed")
        return False  # its own limit is its only deadline

    def _on_output(self, result: CommandResult, stream: str, data: bytes) -> None:
        if self._sink:
            self._sink(result.node, stream, data)
            return
        buffer = result.stdout if stream == "out" else result.stderr
        space = max(0, MAX_OUTPUT_BYTES - len(buffer))
        buffer += data[:space]
        result.truncated |= space < len(data)

    def _on_exit(self, result: CommandResult, reply: Mapping[str, Any]) -> None:
        result.exit_code = reply["code"]
        if survivors := reply["survivors"]:
            result.unverified = True
            result.problem = f"cannot be killed: PID {', '.join(map(str, survivors))}"
        elif reply["error"]:
            result.unverified = result.exit_code is None and "cannot start" not in reply["error"]
            result.problem = reply["error"]
        elif reply["timed_out"]:
            result.problem = "did not end in time and was killed"
        elif self.received_signal and result.exit_code == -signal.SIGKILL:
            result.problem = "interrupted"
