"""Notifications: messages about a run as JSON, and the commands that get them."""

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
from typing import Any, Callable, Dict, List, Mapping, Optional

from runner.core.wire.events import NotificationFailed
from runner.core.wire.order import Notify, Order
from runner.core.wire.states import SIGNAL_EXIT_BASE, Reason
from runner.core.wire.text import describe_exit, format_duration, printable
from runner.core.wire.timing import NOTIFICATION_TIMEOUT_S

MAX_NODES = 256  # that are named
MAX_TEXT = 1000  # characters of a reason
MAX_SHOWN = 60  # characters of a target
MAX_FAILURE = 300  # characters of why a command failed
MIN_HIDDEN_CHARS = 4
"""Shorter values of secrets are not looked for: `1` would be found everywhere."""

POLL_S = 0.05
KILLED = f"it was killed: it took longer than {NOTIFICATION_TIMEOUT_S:g} s, or nobody waits for it"
Message = Dict[str, Any]


def target_problem(target: str) -> str:
    """Return why a text is no command that can be told, "" if it is one."""
    if not target.strip() or not target.isprintable():
        return "a target is empty, or has more than one line"
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", target):
        return "a URL is no command: write curl -fsS -d @- in front of it"
    return ""


class Teller:
    """Tells of the end of a run, by commands with that environment and working folder."""

    def __init__(
        self,
        order: Order,
        notify: Notify,
        environ: Mapping[str, str],
        cwd: str,
        name: str,
        run_flags: str = "",
    ) -> None:
        """`name` says who tells; `environ` has the secrets, which no text may have."""
        self._order = order
        self._notify = notify
        self._environ = environ
        self._cwd = cwd
        self._name = name
        self._run_flags = run_flags or f"--run {order.run_id}"

    def message(
        self,
        state: str,
        exit_code: int,
        seconds: float,
        reason: Optional[Reason] = None,
        meaning: str = "",
    ) -> Message:
        """Return what the commands get; `meaning` is that of the `reason`, where it is known."""
        notify = self._notify
        event = "failure"
        text = f"{state} after {format_duration(seconds)}"
        failure: Optional[Dict[str, Any]] = None
        if exit_code == 0 or exit_code >= SIGNAL_EXIT_BASE:
            event = "end"
        elif reason is not None:
            told = self._hide(reason.text, MAX_TEXT)
            text += f": {told}"
            failure = {"kind": reason.kind.value, "node": reason.node, "rank": reason.rank}
            failure["reason"] = told
            failure["meaning"] = self._hide(meaning, MAX_TEXT)
        run_id = self._order.run_id
        line = f"run {run_id} ({notify.task} on {notify.cluster}) {text}"
        return {
            "v": 1,
            "event": event,
            "run_id": run_id,
            "cluster": notify.cluster,
            "task": notify.task,
            "state": state,
            "exit_code": exit_code,
            "seconds": round(seconds, 3),
            "attempt": self._order.attempt,
            "nodes": notify.nodes[:MAX_NODES],
            "node_count": len(notify.nodes),
            "first_failure": failure,
            "told_by": self._name,
            "text": line,  # Slack, Mattermost and others show it
            "content": line,  # Discord does
            "hint": f"{notify.program} why {self._run_flags}",
        }

    def deliver(
        self, message: Message, is_cancelled: Callable[[], bool] = lambda: False
    ) -> List[NotificationFailed]:
        """Run all commands at once, once; return those that failed.

        Those that still run after `NOTIFICATION_TIMEOUT_S`, or when it is cancelled, are killed.
        """
        deadline = time.monotonic() + NOTIFICATION_TIMEOUT_S
        variables = {f"RUNNER_{key.upper()}": message[key] for key in ("run_id", "event", "state")}
        environ = {**self._environ, **variables}
        payload = json.dumps(message).encode() + b"\n"

        def run(target: str) -> str:
            try:
                process = subprocess.Popen(  # noqa: S603 (as the user wrote it)
                    ["/bin/sh", "-c", target],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    cwd=self._cwd,
                    env=environ,
                    start_new_session=True,
                )
            except OSError as error:
                return f"cannot be started: {error.strerror}"
            printed: List[bytes] = []
            exchange = threading.Thread(
                target=lambda: printed.append(process.communicate(payload)[0]), daemon=True
            )
            exchange.start()
            while process.poll() is None and not is_cancelled() and time.monotonic() < deadline:
                time.sleep(POLL_S)
            code = process.poll()
            with contextlib.suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)  # what it left in the background, too
            exchange.join(1.0)
            if code == 0:
                return ""
            reason = KILLED
            if code is not None:
                reason = describe_exit(code, -code if code < 0 else None)
            text = " ".join(b"".join(printed).decode(errors="replace").split())
            return f"{reason}: {text}" if text else reason

        def find_failure(target: str) -> NotificationFailed:
            reason = self._hide(run(target), MAX_FAILURE)
            return NotificationFailed(self._hide(target, MAX_SHOWN), reason, message["event"])

        with ThreadPoolExecutor(len(self._notify.targets)) as pool:
            return [each for each in pool.map(find_failure, self._notify.targets) if each.reason]

    def _hide(self, text: str, limit: int) -> str:
        """Return text to show, in which `***` stands for each line of a secret."""
        secrets = "\n".join(self._environ.get(name, "") for name in self._notify.secrets)
        for part in sorted(secrets.splitlines(), key=len, reverse=True):
            if len(part) >= MIN_HIDDEN_CHARS:
                text = text.replace(part, "***")
        shown = printable(text)
        return shown if len(shown) <= limit else f"{shown[: limit - 1]}…"
