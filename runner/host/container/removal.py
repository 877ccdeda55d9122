"""Container removal: what an engine still has of an order is killed, removed, and looked for again.

It is done by name and label, whatever became of the client that started the container: a client
that was killed may have left one that was only created, and that its engine starts a moment later.
"""

from __future__ import annotations

import subprocess
import time
from typing import Callable, Mapping, Optional, Sequence, Tuple

from runner.core.model.container import Container
from runner.host.process import bounded_child
from runner.host.process.bounded_child import BoundedChild

LIMIT_S = 30.0  # for all of it
COMMAND_TIMEOUT_S = 10.0
LOOK_AGAIN_S = 0.5
"""After this time a container shows up whose client was killed as it asked for it."""

UNPROVEN = "does not say that its container is gone"


def remove_meanwhile(
    container: Optional[Container], environ: Mapping[str, str], wait: Callable[[], object]
) -> str:
    """Remove the container in a child, as `remove_container` does; call `wait` meanwhile."""
    if container is None or not container.has_daemon:
        return ""

    def remove() -> None:
        bounded_child.report_facts(problem=remove_container(container, environ))

    child = BoundedChild(remove, LIMIT_S)
    while child.code is None:
        wait()
        child.advance()
    report = child.report()
    if "problem" in report:
        return str(report["problem"])
    reason = f"no answer within {LIMIT_S:g} s" if child.timed_out else child.text or "it failed"
    return _problem(container, reason)


def remove_container(container: Optional[Container], environ: Mapping[str, str]) -> str:
    """Remove the container, and return why it is not known that nothing is left, "" if it is.

    There is nothing to remove where no daemon has made it. The engine is that which created it,
    whatever `environ` says. What the user of the image wrote is the login's in the end.
    """
    if container is None or not container.has_daemon:
        return ""
    environ = {**environ, **container.env}
    empty_rounds, deadline, reason = 0, time.monotonic() + LIMIT_S, ""
    while empty_rounds < 2:
        code, output = _ask(container.find, environ)
        if code:
            return _problem(container, output)
        if output:
            empty_rounds = 0
            _ask(container.kill, environ)  # one that was never started is not killed
            code, reason = _ask(container.remove, environ)
            if time.monotonic() > deadline - COMMAND_TIMEOUT_S:
                return _problem(container, reason)
        else:
            empty_rounds += 1
        if empty_rounds < 2:
            time.sleep(LOOK_AGAIN_S)
    if container.reclaim:
        _ask(container.reclaim, environ)
    return ""


def _problem(container: Container, reason: str) -> str:
    lines = reason.strip().splitlines() or ["no reason"]
    return f"{container.engine} {UNPROVEN}: {lines[-1]}"


def _ask(argv: Sequence[str], environ: Mapping[str, str]) -> Tuple[int, str]:
    """Return the exit code of a command, and what it printed."""
    try:
        done = subprocess.run(
            argv,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=COMMAND_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return 124, f"no answer within {COMMAND_TIMEOUT_S:g} s"
    except OSError as error:
        return 127, error.strerror or str(error)
    return done.returncode, done.stdout.decode(errors="replace").strip()
