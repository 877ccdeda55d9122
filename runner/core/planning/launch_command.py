"""Launch command of a node: torchrun, its predecessor, or the program itself; its environment."""

from __future__ import annotations

import posixpath
from dataclasses import dataclass, field
from typing import Dict, Mapping, Sequence, Tuple

from runner.core.model.facts import Facts
from runner.core.model.plan import Order
from runner.core.model.spec import Node, Spec, Task
from runner.core.planning.rendezvous_flags import NodePosition, flags
from runner.core.protocol.paths import RunPaths

LOCAL_RANK_MACRO = "${local_rank}"

LAUNCHERS = {
    "torchrun": ("torchrun", "torch.distributed.run"),
    "launch": ("torch.distributed.launch", "torch.distributed.launch"),
}
"""The launcher's name in messages, and its module, by `Task.entry`."""

INTERNAL_ENV = ("PYTHON_EXEC", "PET_LOG_DIR", "PET_SHUTDOWN_TIMEOUT")
"""Variables for torchrun that are hidden from ranks and left out of pasted commands."""

TORCHRUN_EXTRA_GRACE_S = 10
"""torchrun kills rank shims with their ranks: its timeout is longer than ours, so that shims can
record how their ranks ended."""

UNBUFFERED = "-u"
"""torchrun starts Python with this option, too: output reaches the log at once."""


@dataclass(frozen=True)
class LaunchCommand:
    """The command line and environment of a launcher process."""

    command: Tuple[str, ...]  # as a person would type it
    argv: Tuple[str, ...]  # the same, with our shim in it
    rank_prefix: Tuple[str, ...]  # what the shim puts before the arguments of a rank
    launcher: str = ""  # the program between the supervisor and the ranks, "" for none
    env: Dict[str, str] = field(default_factory=dict)  # belongs to `command`
    internal_env: Dict[str, str] = field(default_factory=dict)  # only `argv` needs it


def launch_command(
    spec: Spec, position: NodePosition, *, python: str, script: str, run_paths: RunPaths
) -> LaunchCommand:
    """Return the launch command of a node.

    `python` is the task's interpreter on the host, `script` the path of the script, "" for a
    module or a command.
    """
    task = spec.task
    prefix = () if task.kind == "command" else (python,)
    if task.is_plain:
        program = _plain_program(task, script)
        command, argv = (*prefix, *program), (run_paths.shim, *program)
        return LaunchCommand(command, argv, prefix, env=_rendezvous_env(spec, position))
    launcher_name, module = LAUNCHERS[task.entry]
    launcher = (python, "-m", module, *flags(spec, position))
    timeout = spec.torchrun.shutdown_timeout or round(spec.grace_s) + TORCHRUN_EXTRA_GRACE_S
    internal_env = {
        "PET_LOG_DIR": posixpath.join(run_paths.attempt_folder(position.attempt), "torchrun"),
        "PET_SHUTDOWN_TIMEOUT": str(timeout),
    }
    if prefix:
        internal_env["PYTHON_EXEC"] = run_paths.shim
    return LaunchCommand(
        command=launcher + torchrun_program(task, script),
        argv=launcher + torchrun_program(task, script, run_paths.shim),
        rank_prefix=prefix,
        launcher=launcher_name,
        internal_env=internal_env,
    )


def user_args_index(command: Sequence[str], order: Order) -> int:
    """Return where the task's own arguments begin in the command of `order`."""
    if order.launcher:
        options = len(("python", "-m", "torch.distributed.run"))
        words = enumerate(command[options:], start=options + 1)
        return next(index for index, word in words if not word.startswith("-"))
    program = len(order.rank_prefix)
    if not program:
        return 1
    options = len((UNBUFFERED, "-m") if command[program + 1] == "-m" else (UNBUFFERED,))
    return program + options + 1


def _plain_program(task: Task, script: str) -> Tuple[str, ...]:
    """Return the program and its literal arguments, without the interpreter."""
    if task.kind == "command":
        return (task.target, *task.args)
    return (UNBUFFERED, *((script,) if script else ("-m", task.target)), *task.args)


def _rendezvous_env(spec: Spec, position: NodePosition) -> Dict[str, str]:
    """Return the variables that torchrun would set for its one rank.

    TORCHELASTIC_* is left out: ranks would look for a store that torchrun serves.
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


def torchrun_program(task: Task, script: str, shim: str = "") -> Tuple[str, ...]:
    """Return the words after torchrun's options.

    `shim` is the one that starts a command; Python programs have it in `PYTHON_EXEC`.
    """
    args = tuple(escape(arg) for arg in task.args)
    # Without the `--`, torchrun's argparse takes a script's `--n` for its own option.
    if task.kind == "command":
        program = (shim, escape(task.target)) if shim else (task.target,)
        # torch.distributed.launch passes --local-rank by default, but only to Python.
        use_env = ("--use_env",) if task.entry == "launch" else ()
        return (*use_env, "--no_python", "--", *program, *args)
    if script:
        return ("--", escape(script), *args)
    return ("-m", "--", escape(task.target), *args)


def escape(arg: str) -> str:
    """Double every `$` except in torchrun's `${local_rank}` macro.

    torch passes script arguments through `string.Template.safe_substitute`
    (torch/distributed/elastic/utils/api.py), which would turn `$$` into `$`.
    """
    parts = arg.split(LOCAL_RANK_MACRO)
    return LOCAL_RANK_MACRO.join(part.replace("$", "$$") for part in parts)


RECORDER_SIZE_VARS = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
RECORDER_PATH_VARS = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
"""Variables of torch's flight recorder, by their new and their old name (ProcessGroupNCCL.cpp)."""


def flight_recorder_env(env: Mapping[str, str], path_prefix: str) -> Dict[str, str]:
    """Return the variables that put flight recorder dumps beside the logs, if it is switched on."""
    disabled = all(env.get(name, "0") == "0" for name in RECORDER_SIZE_VARS)
    if disabled or any(name in env for name in RECORDER_PATH_VARS):
        return {}
    return dict.fromkeys(RECORDER_PATH_VARS, path_prefix)


def rank_environment(
    spec: Spec,
    node: Node,
    facts: Facts,
    position: NodePosition,
    backend: str,
    interface: str,
    gpus: Tuple[int, ...],
) -> Dict[str, str]:
    """Return our variables, overridden by the cluster's, the node's, and the task's.

    `RUNNER_ATTEMPT` is set from the second attempt on.
    """
    env = {
        "DIST_BACKEND": backend,
        "OMP_NUM_THREADS": str(max(1, int(facts.cores / position.nproc))),
        "RUNNER_RUN_ID": spec.run_id,
        "RUNNER_NODE": node.name,
    }
    if position.attempt:
        env["RUNNER_ATTEMPT"] = str(position.attempt)
    if interface:
        env["GLOO_SOCKET_IFNAME"] = interface
        env["TP_SOCKET_IFNAME"] = interface
        env["NCCL_SOCKET_IFNAME"] = f"={interface}"
    env = {name: value for name, value in env.items() if name not in facts.preset_env}
    if node.gpu_ids or node.gpu_count is not None:
        if gpus:
            env["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"  # as in the facts; CUDA's: fastest first
        env["CUDA_VISIBLE_DEVICES"] = ",".join(str(index) for index in gpus)
    return {**env, **spec.env_of(node)}
