"""What starts the ranks of a node: torchrun, its predecessor, or the supervisor itself."""

from __future__ import annotations

import posixpath
from dataclasses import dataclass, field
from typing import Dict, Sequence, Tuple

from runner.core.model.order import Order
from runner.core.model.spec import Spec, Task
from runner.core.planning import torchrun
from runner.core.planning.rendezvous_flags import Place, flags
from runner.core.protocol.paths import RunFolder

PLUMBING = ("PYTHON_EXEC", "PET_LOG_DIR", "PET_SHUTDOWN_TIMEOUT")
"""Environment for torchrun that no rank shall see and no person needs to paste."""

TORCHRUN_LATER_S = 10
"""torchrun would kill the rank shims with their ranks: its own ladder ends after ours, so that
they can write down how their ranks ended."""

UNBUFFERED = "-u"
"""torchrun starts Python so as well: a log shows what was printed when it was printed."""


@dataclass(frozen=True)
class Entry:
    """How the program of one node is started.

    Attributes:
        command: As a person would type it there.
        argv: The same, with our shim in it.
        env: What belongs to that command of its environment.
        plumbing: What only `argv` needs of its environment.
        rank_prefix: What the shim puts before a rank's own arguments.
        launcher: What stands between the supervisor and the ranks, "" for nothing.
    """

    command: Tuple[str, ...]
    argv: Tuple[str, ...]
    rank_prefix: Tuple[str, ...]
    launcher: str = ""
    env: Dict[str, str] = field(default_factory=dict)
    plumbing: Dict[str, str] = field(default_factory=dict)


def entry(
    spec: Spec, attempt: int, place: Place, *, python: str, script: str, folder: RunFolder
) -> Entry:
    """Return how a node's program is started.

    Args:
        spec: What was asked.
        attempt: The run's n-th start, from 0.
        place: The node's place in the meeting.
        python: The task's interpreter there.
        script: Where the script lies, or "" for a module or a command.
        folder: Of the run on that host.
    """
    task = spec.task
    prefix = () if task.kind == "command" else (python,)
    if task.plain:
        rest = _plain(task, script)
        meeting = _meeting(spec, place)
        return Entry((*prefix, *rest), (folder.shim, *rest), prefix, env=meeting)
    start = torchrun.launcher(python, flags(spec, attempt, place), task.entry)
    timeout = spec.torchrun.shutdown_timeout or round(spec.grace_s) + TORCHRUN_LATER_S
    plumbing = {
        "PET_LOG_DIR": posixpath.join(folder.attempt(attempt), "torchrun"),
        "PET_SHUTDOWN_TIMEOUT": str(timeout),
    }
    if prefix:
        plumbing["PYTHON_EXEC"] = folder.shim
    return Entry(
        command=start + torchrun.program(task, script),
        argv=start + torchrun.program(task, script, folder.shim),
        rank_prefix=prefix,
        launcher=torchrun.NAMES[task.entry],
        plumbing=plumbing,
    )


def args_at(command: Sequence[str], order: Order) -> int:
    """Return where the task's own arguments begin in the command that belongs to `order`."""
    if order.launcher:
        return torchrun.args_at(command)
    program = len(order.rank_prefix)
    if not program:
        return 1
    options = (UNBUFFERED, "-m") if command[program + 1] == "-m" else (UNBUFFERED,)
    return program + len(options) + 1


def _plain(task: Task, script: str) -> Tuple[str, ...]:
    """Return the program as it follows its interpreter; nobody substitutes anything in it."""
    if task.kind == "command":
        return (task.target, *task.args)
    return (UNBUFFERED, *((script,) if script else ("-m", task.target)), *task.args)


def _meeting(spec: Spec, place: Place) -> Dict[str, str]:
    """Return what torchrun would tell its one rank; a program with workers counts on from there.

    None of TORCHELASTIC_*: by those, workers would look for a store that torchrun serves.
    """
    return {
        "MASTER_ADDR": place.addr,
        "MASTER_PORT": str(place.port),
        "NODE_RANK": str(place.index),
        "RANK": str(place.index),
        "WORLD_SIZE": str(len(spec.nodes)),
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
    }
