"""Notifications: messages about a run as JSON, and the commands that get them.

Messages tell of the end of a run and of a stall. A launch sends them, or a host where none is left.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Callable, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple

from runner.core.wire.order import Notify
from runner.core.wire.states import SIGNAL_EXIT_BASE, Reason
from runner.core.wire.text import describe_exit, format_duration, printable
from runner.core.wire.timing import NOTIFICATION_TIMEOUT_S

MESSAGE_VERSION = 1
MAX_NODES = 256  # that are named
MAX_TEXT = 1000  # characters of a reason
MAX_TARGET = 4096  # characters
MAX_SHOWN = 60  # characters of a target
MAX_FAILURE = 300  # characters of why a command failed
MIN_HIDDEN_CHARS = 4
"""Shorter values of secrets are not looked for: `1` would be found everywhere."""

POLL_S = 0.05
KILLED = f"it was killed: it took longer than {NOTIFICATION_TIMEOUT_S:g} s, or nobody waits for it"
Message = Dict[str, Any]


def target_problem(target: str) -> str:
    """Return why a text is no command that can be told, "" if it is one."""
    if not target.strip():
        return "a target is empty"
    if len(target) > MAX_TARGET:
        return f"a target has more than {MAX_TARGET} characters"
    if any(char in target for char in "\n\r\0"):
        return "a target has more than one line"
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", target):
        return "a URL is no command: write curl -fsS -d @- in front of it"
    return ""


@dataclass(frozen=True)
class Subject:
    """The attempt that is told about, and who tells."""

    run_id: str
    attempt: int
    notify: Notify
    secrets: Tuple[str, ...] = ()  # values that no text may have
    told_by: str = "launch"  # or a node
    run_flags: str = ""  # the words that find the run; "" for its id alone

    def ended(
        self,
        state: str,
        exit_code: int,
        seconds: float,
        reason: Optional[Reason] = None,
        meaning: str = "",
    ) -> Message:
        """Return the message about the end of the run, and why it ended where it did not succeed.

        What that means is known where the log of the rank is.
        """
        is_wanted = exit_code == 0 or exit_code >= SIGNAL_EXIT_BASE
        text = f"{state} after {format_duration(seconds)}"
        if reason is not None and not is_wanted:
            text += f": {reason.text}"
        message = self._message("end" if is_wanted else "failure", state, text, seconds, "why")
        message["exit_code"] = exit_code
        if reason is not None and not is_wanted:
            message["first_failure"] = {
                "kind": reason.kind.value,
                "node": reason.node,
                "rank": reason.rank,
                "reason": self._clean(reason.text),
                "meaning": self._clean(meaning),
            }
        return message

    def stalled(self, stalled_s: float, seconds: float) -> Message:
        """Return the message about a run in which no rank has made progress for a while."""
        text = f"hangs: no rank has made progress for {stalled_s:.0f} s"
        return self._message("stall", "running", text, seconds, "stacks")

    def _message(self, event: str, state: str, text: str, seconds: float, verb: str) -> Message:
        notify = self.notify
        line = self._clean(f"run {self.run_id} ({notify.task} on {notify.cluster}) {text}")
        return {
            "v": MESSAGE_VERSION,
            "event": event,
            "run_id": self.run_id,
            "cluster": notify.cluster,
            "task": notify.task,
            "state": state,
            "exit_code": None,  # while it runs
            "seconds": round(seconds, 3),
            "attempt": self.attempt,
            "nodes": notify.nodes[:MAX_NODES],
            "node_count": len(notify.nodes),
            "first_failure": None,
            "told_by": self.told_by,
            "text": line,  # Slack, Mattermost and others show it
            "content": line,  # Discord does
            "hint": f"{notify.program} {verb} {self.run_flags or f'--run {self.run_id}'}",
        }

    def _clean(self, text: str) -> str:
        return printable(_hide(text, self.secrets))[:MAX_TEXT]


def _hide(text: str, secrets: Iterable[str]) -> str:
    """Return text in which `***` stands for secrets, and for each line of one that has several."""
    parts = {part for value in secrets for part in (value, *value.splitlines())}
    for part in sorted(parts, key=len, reverse=True):
        if len(part) >= MIN_HIDDEN_CHARS:
            text = text.replace(part, "***")
    return text


def deliver(
    targets: Sequence[str],
    message: Message,
    environ: Mapping[str, str],
    cwd: str,
    secrets: Sequence[str],
    is_cancelled: Callable[[], bool] = lambda: False,
) -> List[Tuple[str, str]]:
    """Run all commands at once, once; return those that failed, with the reasons.

    Those that still run after `NOTIFICATION_TIMEOUT_S`, or when it is cancelled, are killed.
    """
    deadline = time.monotonic() + NOTIFICATION_TIMEOUT_S
    payload = json.dumps(message).encode() + b"\n"
    variables = {f"RUNNER_{name.upper()}": message[name] for name in ("run_id", "event", "state")}

    def is_over() -> bool:
        return is_cancelled() or time.monotonic() >= deadline

    def run(target: str) -> Tuple[str, str]:
        reason = _run(target, payload, cwd, {**environ, **variables}, is_over)
        return _shorten(target, MAX_SHOWN), _shorten(_hide(reason, secrets), MAX_FAILURE)

    with ThreadPoolExecutor(len(targets)) as pool:
        return [(target, reason) for target, reason in pool.map(run, targets) if reason]


def _run(
    target: str, payload: bytes, cwd: str, environ: Mapping[str, str], is_over: Callable[[], bool]
) -> str:
    """Run a shell command on a message; return why it failed, "" if it did not."""
    try:
        process = subprocess.Popen(  # noqa: S603 (as the user wrote it)
            ["/bin/sh", "-c", target],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=cwd,
            env=dict(environ),
            start_new_session=True,
        )
    except OSError as error:
        return f"cannot be started: {error.strerror}"
    printed: List[bytes] = []
    exchange = threading.Thread(
        target=lambda: printed.append(process.communicate(payload)[0]), daemon=True
    )
    exchange.start()
    while process.poll() is None and not is_over():
        time.sleep(POLL_S)
    code = process.poll()
    with contextlib.suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)  # what it left in the background, too
    exchange.join(1.0)
    if code == 0:
        return ""
    reason = KILLED
    if code is not None:
        reason = describe_exit(code, None) if code > 0 else describe_exit(None, -code)
    text = " ".join(b"".join(printed).decode(errors="replace").split())
    return f"{reason}: {text}" if text else reason


def _shorten(text: str, limit: int) -> str:
    shown = printable(text)
    return shown if len(shown) <= limit else f"{shown[: limit - 1]}…"
