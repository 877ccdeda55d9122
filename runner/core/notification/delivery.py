"""Delivery of a notification: to every command at once, within one deadline, without a retry.

It is in this room since a launch and a host both deliver, and nothing else is common to them.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import threading
import time
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Sequence, Tuple

from runner.core.notification.target import hide
from runner.core.protocol.timing import NOTIFICATION_TIMEOUT_S
from runner.core.text import describe_exit, printable

MAX_OUTPUT = 4 << 10  # bytes of what a command prints that are kept
MAX_REASON = 300  # characters
_POLL_S = 0.05


class Place(NamedTuple):
    """Where commands are run: their environment and folder, and its secrets."""

    environ: Mapping[str, str]
    cwd: str
    secrets: Sequence[str]  # values, which no reason may have
    cancelled: Callable[[], bool] = lambda: False  # whether commands are to be killed now


class FailedDelivery(NamedTuple):
    """A command that failed, and why."""

    target: str
    reason: str


def deliver(targets: Sequence[str], data: Dict[str, Any], place: Place) -> List[FailedDelivery]:
    """Run all commands; return those that failed, after the deadline at the latest."""
    deadline = time.monotonic() + NOTIFICATION_TIMEOUT_S
    payload = json.dumps(data).encode() + b"\n"
    environ = {
        **place.environ,
        "RUNNER_RUN_ID": str(data["run_id"]),
        "RUNNER_EVENT": str(data["event"]),
        "RUNNER_STATE": str(data["state"]),
    }
    reasons: Dict[int, str] = {}

    def send(index: int, target: str) -> None:
        try:
            reason = _run(target, payload, place._replace(environ=environ), deadline)
        except Exception as error:  # noqa: BLE001 (whatever it is, nothing depends on it)
            reason = f"{type(error).__name__}: {error}"
        hidden = printable(hide(reason, place.secrets))
        reasons[index] = hidden if len(hidden) <= MAX_REASON else f"{hidden[:MAX_REASON]}…"

    threads = [
        threading.Thread(target=send, args=each, daemon=True, name="notify")
        for each in enumerate(targets)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:  # a command is killed at the deadline
        thread.join(max(0.0, deadline + 2 * _POLL_S + 1.0 - time.monotonic()))
    late = f"no answer within {NOTIFICATION_TIMEOUT_S:g} s"
    found = [(target, reasons.get(index, late)) for index, target in enumerate(targets)]
    return [FailedDelivery(target, reason) for target, reason in found if reason]


def _run(command: str, payload: bytes, place: Place, deadline: float) -> str:
    """Run a command with the message as its standard input; return why it failed, or ""."""
    try:
        process = subprocess.Popen(  # noqa: S603 (as the user wrote it)
            ["/bin/sh", "-c", command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            bufsize=0,
            cwd=place.cwd,
            env=dict(place.environ),
            start_new_session=True,
        )
    except OSError as error:
        return f"cannot be started: {error.strerror}"
    with process:
        output, has_ended = _exchange(
            process, payload, lambda: place.cancelled() or time.monotonic() >= deadline
        )
        with contextlib.suppress(OSError):  # before it is reaped: its group is ours till then
            os.killpg(process.pid, signal.SIGKILL)
        code = process.wait()
    if not has_ended and time.monotonic() < deadline:
        return f"it was killed, as nobody waits for it any more{output}"
    if not has_ended:
        return f"it took longer than {NOTIFICATION_TIMEOUT_S:g} s, and was killed{output}"
    return f"{describe_exit(code, None) if code > 0 else describe_exit(None, -code)}{output}" * (
        code != 0
    )


def _exchange(
    process: subprocess.Popen[bytes], payload: bytes, is_over: Callable[[], bool]
) -> Tuple[str, bool]:
    """Write its input to a process, as far as it reads that.

    Return the end of what it prints, as part of a reason, and whether it ended.
    """
    stdin, stdout, output = process.stdin, process.stdout, b""
    assert stdin is not None  # noqa: S101 (both are pipes)
    assert stdout is not None  # noqa: S101
    os.set_blocking(stdin.fileno(), False)
    with selectors.DefaultSelector() as selector:
        selector.register(stdin, selectors.EVENT_WRITE)
        selector.register(stdout, selectors.EVENT_READ)
        while True:
            flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
            has_ended = os.waitid(os.P_PID, process.pid, flags) is not None
            ready = {key.fileobj for key, _ in selector.select(0 if has_ended else _POLL_S)}
            if stdin in ready:
                payload = payload[_write(stdin.fileno(), payload) :]
                if not payload:
                    selector.unregister(stdin)
                    stdin.close()
            if stdout in ready:
                chunk = os.read(stdout.fileno(), 1 << 16)
                output = (output + chunk)[-MAX_OUTPUT:]
                if not chunk:
                    selector.unregister(stdout)
            if is_over() or (has_ended and not ready):
                break
    text = " ".join(output.decode(errors="replace").split())
    return f": {text}" if text else "", has_ended


def _write(fd: int, data: bytes) -> int:
    """Write what fits; all counts as written where nobody reads it any more."""
    try:
        return os.write(fd, data)
    except BrokenPipeError:
        return len(data)
