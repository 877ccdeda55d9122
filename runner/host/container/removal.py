"""Container removal: what an engine still has of an order is killed, removed, and looked for again.

It is found by its labels and removed by its id, whatever became of the client that started it: one
that was killed may have left a container that was only created, and that its engine starts later.
"""

from __future__ import annotations

import subprocess
import time
from typing import Callable, Mapping, NamedTuple, Optional, Sequence, Tuple

from runner.core.model.container import Container
from runner.host.process import bounded_child
from runner.host.process.bounded_child import BoundedChild

REMOVE_LIMIT_S = 30.0
RECLAIM_LIMIT_S = 30.0
LIMIT_S = 2 * REMOVE_LIMIT_S + RECLAIM_LIMIT_S  # for all of it: removal comes first and last
COMMAND_TIMEOUT_S = 10.0
LOOK_AGAIN_S = 0.5
"""After this time a container shows up whose client was killed as it asked for it."""

UNPROVEN = "does not say that its container is gone"
NOT_RECLAIMED = "files of the image's user stay that user's"


class Removal(NamedTuple):
    """What became of a container, and of the files that it wrote."""

    problem: str = ""  # why it is not known that nothing is left, "" if it is
    note: str = ""  # why some files are not the login's

    @property
    def text(self) -> str:
        """Both, for a record."""
        return "; ".join(filter(None, self))


def begin(container: Container, environ: Mapping[str, str]) -> BoundedChild:
    """Do as `remove_container` in a child; see `result_of`."""

    def remove() -> None:
        bounded_child.report_facts(removal=remove_container(container, environ))

    return BoundedChild(remove, LIMIT_S)


def result_of(child: BoundedChild, container: Container) -> Removal:
    """Return what a child reported that has ended."""
    report = child.report()
    if "removal" in report:
        return Removal(*report["removal"])
    reason = f"no answer within {LIMIT_S:g} s" if child.timed_out else child.text or "it failed"
    return Removal(_problem(container, reason))


def remove_in_child(
    container: Optional[Container], environ: Mapping[str, str], wait: Callable[[], object]
) -> Removal:
    """Do as `remove_container` in a child, and call `wait` again and again until that has ended."""
    if container is None or not container.has_daemon:
        return Removal()
    child = begin(container, environ)
    while child.code is None:
        wait()
        child.advance()
    return result_of(child, container)


def remove_container(container: Optional[Container], environ: Mapping[str, str]) -> Removal:
    """Remove the container; what the user of the image wrote is the login's in the end.

    There is nothing to remove where no daemon has made it. The engine is that which created it,
    whatever `environ` says.
    """
    if container is None or not container.has_daemon:
        return Removal()
    environ = {**environ, **container.env}
    note = ""
    problem = _remove_all(container, environ)
    if container.reclaim and not problem:
        code, output = _ask(container.reclaim, environ, RECLAIM_LIMIT_S)
        note = f"{NOT_RECLAIMED}: {_last_line(output)}" if code else ""
        problem = _remove_all(container, environ)  # its client may have been killed
    return Removal(problem, note)


def _remove_all(container: Container, environ: Mapping[str, str]) -> str:
    """Remove all that the engine finds until it finds none twice; return why that is not so."""
    empty_rounds = 0
    deadline = time.monotonic() + REMOVE_LIMIT_S
    while empty_rounds < 2:
        code, output = _ask(container.find, environ)
        if code:
            return _problem(container, output)
        if output:
            empty_rounds = 0
            ids = output.split()
            _ask((*container.kill, *ids), environ)  # one that was never started is not killed
            _, reason = _ask((*container.remove, *ids), environ)
            if time.monotonic() > deadline - COMMAND_TIMEOUT_S:
                return _problem(container, reason)
        else:
            empty_rounds += 1
        if empty_rounds < 2:
            time.sleep(LOOK_AGAIN_S)
    return ""


def _problem(container: Container, reason: str) -> str:
    return f"{container.engine} {UNPROVEN}: {_last_line(reason)}"


def _last_line(output: str) -> str:
    return (output.strip().splitlines() or ["no reason"])[-1]


def _ask(
    argv: Sequence[str], environ: Mapping[str, str], limit_s: float = COMMAND_TIMEOUT_S
) -> Tuple[int, str]:
    """Return the exit code of a command, and what it printed: a warning is no answer."""
    null = subprocess.DEVNULL
    pipe = subprocess.PIPE
    try:
        done = subprocess.run(
            argv, env=environ, stdin=null, stdout=pipe, stderr=pipe, timeout=limit_s, check=False
        )
    except subprocess.TimeoutExpired:
        return 124, f"no answer within {limit_s:g} s"
    except OSError as error:
        return 127, error.strerror or str(error)
    output = done.stdout + done.stderr if done.returncode else done.stdout
    return done.returncode, output.decode(errors="replace").strip()
