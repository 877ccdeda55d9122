"""Containers on a host: what an engine has of a node's run is removed until it finds none twice.

Found by labels: a client that was killed may have left one that its engine makes only later.
"""

from __future__ import annotations

import subprocess
import time
from typing import Callable, Mapping, Optional, Sequence, Tuple

from runner.core.wire.container import Container
from runner.core.wire.timing import ENGINE_TIMEOUT_S
from runner.host.process.bounded_child import BoundedChild, report_facts

COMMAND_TIMEOUT_S = 10.0
GIVE_UP_S = 20.0  # after this time, what is found is not removed once more
LOOK_AGAIN_S = 1.0


def remove_container(container: Optional[Container], environ: Mapping[str, str]) -> str:
    """Remove what an engine has of a node's run; return why it is not proven to be gone, or "".

    The engine is that which started it, whatever `environ` says.
    """
    if container is None or not container.engine:
        return ""
    environ = {**environ, **container.env}
    empty_rounds = 0
    deadline = time.monotonic() + GIVE_UP_S
    reason = ""
    while True:
        code, found = run(container.find, environ, COMMAND_TIMEOUT_S)
        if code:
            return _problem(container, found)
        empty_rounds = 0 if found else empty_rounds + 1
        if empty_rounds == 2:
            return ""
        if found and time.monotonic() > deadline:
            return _problem(container, reason)
        if found:
            ids = found.split()
            code, said = run((*container.remove, *ids), environ, COMMAND_TIMEOUT_S)
            reason = said if code else reason
        time.sleep(LOOK_AGAIN_S)


def remove_in_child(
    container: Optional[Container], environ: Mapping[str, str], wait: Callable[[], object]
) -> str:
    """Do as `remove_container` in a child, and call `wait` again and again until that has ended."""

    def remove() -> None:
        report_facts(problem=remove_container(container, environ))

    if container is None or not container.engine:
        return ""
    child = BoundedChild(remove, ENGINE_TIMEOUT_S)
    try:
        while child.code is None:
            wait()
            child.advance()
    finally:
        child.kill()
    unknown = child.text or "it failed"
    if child.timed_out:
        unknown = f"no answer within {child.limit_s:g} s"
    return str(child.report().get("problem", _problem(container, unknown)))


def _problem(container: Container, reason: str) -> str:
    why = last_line(reason) or "it gave no reason"
    return f"{container.engine} does not say that its container is gone: {why}"


def last_line(output: str) -> str:
    """Return the last line of what an engine printed, without its advice and its prefix."""
    lines = [line.strip() for line in output.splitlines()]
    lines = [line for line in lines if line and not line.startswith(("See '", "Run '"))]
    line = lines[-1] if lines else ""
    for prefix in ("docker:", "Error:", "Error response from daemon:"):
        line = line[len(prefix) :].strip() if line.startswith(prefix) else line
    return line[:300]


def run(argv: Sequence[str], environ: Mapping[str, str], limit_s: float) -> Tuple[int, str]:
    """Return the exit code of an engine's command, and what it printed: a warning is no answer."""
    pipe = subprocess.PIPE
    try:
        done = subprocess.run(
            argv,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=pipe,
            stderr=pipe,
            timeout=limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return 124, f"no answer within {limit_s:g} s"
    except OSError as error:
        return 127, error.strerror or str(error)
    output = done.stdout + done.stderr if done.returncode else done.stdout
    return done.returncode, output.decode(errors="replace").strip()
