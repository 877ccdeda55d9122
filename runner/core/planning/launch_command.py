"""Launch command of a node: torchrun, its predecessor, or the program itself; its environment."""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass, field
from typing import Dict, Mapping, Sequence, Tuple

from runner.core.model.facts import Facts, Interpreter
from runner.core.model.plan import SPAWNER
from runner.core.planning.rendezvous_flags import NodePosition, flags, torch_version
from runner.core.protocol.paths import RunPaths
from runner.core.spec import Node, Spec, Task

LOCAL_RANK_MACRO = "${local_rank}"

LAUNCHERS = {
    "torchrun": ("torchrun", "torch.distributed.run"),
    "launch": ("torch.distributed.launch", "torch.distributed.launch"),
}
"""The launcher's name in messages, and its module, by `Task.entry`."""

CPP_LOG_LEVEL = "TORCH_CPP_LOG_LEVEL"
"""torch's own variable for the least severe messages of its C++ code that are printed."""

TORCHRUN_EXTRA_GRACE_S = 10
"""torchrun kills rank shims with their ranks: its timeout is longer than ours, so that shims can
record how their ranks ended."""

DASHED_SINCE = (2, 0)
"""The first torch whose torch.distributed.launch passes `--local-rank`, not `--local_rank`."""

SYSTEM_FOLDERS = ("/usr/bin", "/usr/local/bin", "/bin")
"""The folders of programs that are on every PATH, with much else than an interpreter in them."""

ENV_PROGRAM, REMOVE_OPTION = "env", "-u"
"""The program that takes names out of an environment, and its option, in commands to paste."""

UNBUFFERED = "-u"
"""torchrun starts Python with this option, too: output reaches the log at once."""


@dataclass(frozen=True)
class LaunchCommand:
    """The command line and environment of a launcher process."""

    command: Tuple[str, ...]  # as a person would type it
    argv: Tuple[str, ...]  # the same, with the words of our shim before each rank's program
    rank_prefix: Tuple[str, ...]  # the task's interpreter, () for a command
    arg_count: int  # how many words at the end of `command` are arguments of the program
    launcher: str = ""  # the program between the supervisor and the ranks, "" for none
    env: Dict[str, str] = field(default_factory=dict)  # belongs to `command`
    internal_env: Dict[str, str] = field(default_factory=dict)  # only `argv` needs it


def launch_command(
    spec: Spec,
    node: Node,
    position: NodePosition,
    facts: Facts,
    *,
    script: str,
    run_paths: RunPaths,
) -> LaunchCommand:
    """Return the launch command of a node.

    `script` is the path of the script on the host, "" for a module or a command.
    """
    task, python = spec.task, facts.python
    prefix = () if task.kind == "command" else (python.executable,)
    program = (*prefix, *_program(task, script))
    removed = spec.removed_env_of(node)
    attempt_folder = run_paths.attempt_folder(position.attempt)
    internal_env = {} if task.without_torchrun else _internal_env(spec, node, facts, attempt_folder)
    own_python = facts.host_python or spec.cluster.host_python
    site = run_paths.site if spec.watch.stacks == "auto" else ""
    hidden = ",".join((*internal_env, *removed))
    shim = (own_python, "-I", "-S", run_paths.shim, attempt_folder, site, hidden)
    if task.is_plain:
        env = _rendezvous_env(spec, position)
        args = _expand(task.words, env) if task.args_expand else task.words
        command = (*program, *args)
        return LaunchCommand(
            *((*env_command(removed), *command), (*shim, *command), prefix, len(args)), env=env
        )
    if task.entry == SPAWNER:
        return _spawn_command(spec, position, run_paths, shim, (*program, *task.words), prefix)
    launcher_name, module = LAUNCHERS[task.entry]
    modules = preloaded_modules(spec)
    torchrun = (module, *flags(spec, position))
    launcher = (python.executable, *_module_start(python, module), *torchrun[1:])
    local_rank = local_rank_argument(task, python.torch)
    started_launcher = launcher
    if modules:
        started_launcher = (
            *(python.executable, UNBUFFERED, run_paths.preload, ",".join(modules)),
            *(",".join(internal_env), script or f"-m{task.target}", *torchrun),
        )
    words = map(escape, (*shim[1:], *program, *local_rank, *task.words))
    shown, arg_count = torchrun_program(task, script), len(task.words)
    if removed:  # torchrun may set them itself, just before
        without = (*env_command(removed), *program, *local_rank, *task.words)
        shown = (*_program_options(task), *map(escape, without))
        arg_count += len(local_rank)
    return LaunchCommand(
        command=(*launcher, *shown),
        argv=(*started_launcher, *_program_options(task), shim[0], *words),
        rank_prefix=prefix,
        arg_count=arg_count,
        launcher=launcher_name,
        internal_env=internal_env,
    )


def _module_start(python: Interpreter, module: str) -> Tuple[str, ...]:
    """Return the words that start a launcher; `python -m` alone prefers the user's modules."""
    version = torch_version(python.version)
    if version and version < (3, 11):
        return ("-c", f"import sys; del sys.path[0]; from {module} import main; sys.exit(main())")
    return ("-P", "-m", module) if version else ("-m", module)


def preloaded_modules(spec: Spec) -> Tuple[str, ...]:
    """Return the modules that one process of a node imports for its ranks.

    None where the ranks are no Python under torchrun, or have a memory policy of their own.
    """
    task = spec.task
    is_served = task.kind != "command" and not task.without_torchrun
    return task.preload if is_served and not spec.torchrun.numa_binding else ()


def _spawn_command(
    spec: Spec,
    position: NodePosition,
    run_paths: RunPaths,
    shim: Tuple[str, ...],
    program: Tuple[str, ...],
    prefix: Tuple[str, ...],
) -> LaunchCommand:
    """Return the command of ranks that are started as srun starts its tasks."""
    numbers = (str(position.nproc), str(position.first_rank))
    return LaunchCommand(
        command=("srun", f"--ntasks-per-node={position.nproc}", *program),
        argv=(*shim[:3], run_paths.spawner, *numbers, *shim, *program),
        rank_prefix=prefix,
        arg_count=len(spec.task.words),
        launcher=SPAWNER,
        env={
            "MASTER_ADDR": position.addr,
            "MASTER_PORT": str(position.port),
            "NODE_RANK": str(position.index),
            "NNODES": str(len(spec.nodes)),
            "WORLD_SIZE": str(position.world_size),
        },
    )


def _internal_env(spec: Spec, node: Node, facts: Facts, attempt_folder: str) -> Dict[str, str]:
    """Return variables for torchrun, hidden from ranks and left out of pasted commands.

    With c10d the store ends with the master's torchrun. The others then print C++ stack traces of
    connections that were closed or have broken pipes, also where every rank has succeeded.
    """
    timeout = spec.torchrun.shutdown_timeout or round(spec.grace_s) + TORCHRUN_EXTRA_GRACE_S
    env = {
        "PET_LOG_DIR": posixpath.join(attempt_folder, "torchrun"),
        "PET_SHUTDOWN_TIMEOUT": str(timeout),
    }
    is_own = CPP_LOG_LEVEL in facts.preset_env or CPP_LOG_LEVEL in spec.env_of(node)
    if spec.rendezvous.backend == "c10d" and not is_own:
        env[CPP_LOG_LEVEL] = "ERROR"
    return env


def env_command(removed: Sequence[str]) -> Tuple[str, ...]:
    """Return the words before a program that take names out of its environment."""
    options = [word for name in removed for word in (REMOVE_OPTION, name)]
    return (ENV_PROGRAM, *options) if options else ()


def _expand(args: Sequence[str], env: Mapping[str, str]) -> Tuple[str, ...]:
    """Return arguments with `$NAME` and `${NAME}` of the rendezvous replaced; others stay."""
    values = {**env, "LOCAL_RANK": "0"}

    def value(reference: "re.Match[str]") -> str:
        return values.get(reference[1] or reference[2], reference[0])

    return tuple(re.sub(r"\$(?:(\w+)|\{(\w+)\})", value, arg) for arg in args)


def _program(task: Task, script: str) -> Tuple[str, ...]:
    """Return the program, without the interpreter and its own arguments."""
    if task.kind == "command":
        return (task.target,)
    return (UNBUFFERED, *((script,) if script else ("-m", task.target)))


def local_rank_argument(task: Task, torch: str) -> Tuple[str, ...]:
    """Return the argument that torch.distributed.launch passes to Python programs by itself.

    With our shim before them it would get the argument instead.
    """
    if task.entry != "launch" or task.kind == "command":
        return ()
    name = "local_rank" if (torch_version(torch) or DASHED_SINCE) < DASHED_SINCE else "local-rank"
    return (f"--{name}={LOCAL_RANK_MACRO}",)


def _rendezvous_env(spec: Spec, position: NodePosition) -> Dict[str, str]:
    """Return the variables by which the one process of a node finds the others.

    Of what torchrun sets, LOCAL_RANK and LOCAL_WORLD_SIZE are left out: by them libraries that
    start their own workers (Lightning, accelerate) conclude that somebody else has. TORCHELASTIC_*
    is left out as well: ranks would look for a store that torchrun serves.
    """
    return {
        "MASTER_ADDR": position.addr,
        "MASTER_PORT": str(position.port),
        "NODE_RANK": str(position.index),
        "NNODES": str(len(spec.nodes)),
        "RANK": str(position.index),
        "WORLD_SIZE": str(len(spec.nodes)),
    }


def _program_options(task: Task) -> Tuple[str, ...]:
    """Return the options by which torchrun starts the words after them as they are."""
    # torch.distributed.launch passes --local-rank by default, but only to Python.
    return (*(("--use_env",) if task.entry == "launch" else ()), "--no_python", "--")


def torchrun_program(task: Task, script: str) -> Tuple[str, ...]:
    """Return the words after torchrun's options, as a person would type them."""
    args = tuple(escape(arg) for arg in task.words)
    # Without the `--`, torchrun's argparse takes a script's `--n` for its own option.
    if task.kind == "command":
        return (*_program_options(task), task.target, *args)
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


def path_folder(spec: Spec, node: Node, facts: Facts) -> str:
    """Return the folder of the task's interpreter, which comes first on the PATH of programs.

    "" where a PATH of the user's says what is found, where the interpreter was itself found on the
    host's, and for the system's own: /usr/bin must not come before what `cluster.setup` put there.
    """
    folder = posixpath.dirname(facts.python.executable)
    if "/" not in node.python or "PATH" in spec.env_of(node) or folder in SYSTEM_FOLDERS:
        return ""
    return folder


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
        is_renumbered = spec.container.engine in ("docker", "podman")  # apptainer shows all
        shown = range(len(gpus)) if is_renumbered else gpus
        env["CUDA_VISIBLE_DEVICES"] = ",".join(str(index) for index in shown)
    return {**env, **spec.env_of(node)}
