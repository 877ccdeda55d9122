"""What starts the ranks of a node: torchrun, its predecessor, or the supervisor itself."""

from __future__ import annotations

import posixpath
from dataclasses import dataclass, field
from typing import Dict, Sequence, Tuple

from runner.core.model.order import Order
from runner.core.model.spec import Spec, Task
from runner.core.planning import torchrun
from runner.core.planning.rendezvous_flags import NodePosition, flags
from runner.core.protocol.paths import RunPaths

INTERNAL_ENV = ("PYTHON_EXEC", "PET_LOG_DIR", "PET_SHUTDOWN_TIMEOUT")
"""Environment for torchrun that no rank shall see and no person needs to paste."""

TORCHRUN_EXTRA_GRACE_S = 10
"""torchrun would kill the rank shims with their ranks: its own ladder ends after ours, so that
they can write down how their ranks ended."""

UNBUFFERED = "-u"
"""torchrun starts Python so as well: a log shows what was printed when it was printed."""


@dataclass(frozen=True)
class LaunchCommand:
    """How the program of one node is started.

    Attributes:
        command: As a person would type it there.
        argv: The same, with our shim in it.
        env: What belongs to that command of its environment.
        internal_env: What only `argv` needs of its environment.
        rank_prefix: What the shim puts before a rank's own arguments.
        launcher: What stands between the supervisor and the ranks, "" for nothing.
    """

    command: Tuple[str, ...]
    argv: Tuple[str, ...]
    rank_prefix: Tuple[str, ...]
    launcher: str = ""
    env: Dict[str, str] = field(default_factory=dict)
    internal_env: Dict[str, str] = field(default_factory=dict)


def launch_command(
    spec: Spec,
    attempt: int,
    position: NodePosition,
    *,
    python: str,
    script: str,
    run_paths: RunPaths,
) -> LaunchCommand:
    """Return how a node's program is started.

    Args:
        spec: What was asked.
        attempt: The run's n-th start, from 0.
        position: The node's place in the meeting.
        python: The task's interpreter there.
        script: Where the script lies, or "" for a module or a command.
        run_paths: Of the run on that host.
    """
    task = spec.task
    prefix = () if task.kind == "command" else (python,)
    if task.is_plain:
        program = _plain_program(task, script)
        rendezvous_env = _rendezvous_env(spec, position)
        return LaunchCommand(
            (*prefix, *program), (run_paths.shim, *program), prefix, env=rendezvous_env
        )
    launcher = torchrun.torchrun_command(python, flags(spec, attempt, position), task.entry)
    timeout = spec.torchrun.shutdown_timeout or round(spec.grace_s) + TORCHRUN_EXTRA_GRACE_S
    internal_env = {
        "PET_LOG_DIR": posixpath.join(run_paths.attempt_folder(attempt), "torchrun"),
        "PET_SHUTDOWN_TIMEOUT": str(timeout),
    }
    if prefix:
        internal_env["PYTHON_EXEC"] = run_paths.shim
    return LaunchCommand(
        command=launcher + torchrun.torchrun_program(task, script),
        argv=launcher + torchrun.torchrun_program(task, script, run_paths.shim),
        rank_prefix=prefix,
        launcher=torchrun.LAUNCHER_NAMES[task.entry],
        internal_env=internal_env,
    )


def user_args_index(command: Sequence[str], order: Order) -> int:
    """Return where the task's own arguments begin in the command that belongs to `order`."""
    if order.launcher:
        return torchrun.torchrun_args_index(command)
    program = len(order.rank_prefix)
    if not program:
        return 1
    options = (UNBUFFERED, "-m") if command[program + 1] == "-m" else (UNBUFFERED,)
    return program + len(options) + 1


def _plain_program(task: Task, script: str) -> Tuple[str, ...]:
    """Return the program as it follows its interpreter; nobody substitutes anything in it."""
    if task.kind == "command":
        return (task.target, *task.args)
    return (UNBUFFERED, *((script,) if script else ("-m", task.target)), *task.args)


def _rendezvous_env(spec: Spec, position: NodePosition) -> Dict[str, str]:
    """Return what torchrun would tell its one rank; a program with workers counts on from there.

    None of TORCHELASTIC_*: by those, workers would look for a store that torchrun serves.
    """
    return {
        "MASTER_ADDR": position.addr,
        "MASTER_PORT": str(position.port),
        "NODE_RANK": str(position.index),
        "RANK": str(position.index),
        "WORLD_SIZE": str(len(spec.nodes)),
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
    }
