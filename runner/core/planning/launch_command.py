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

RECORDER_SIZE_VARS = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
RECORDER_PATH_VARS = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
"""Variables of torch's flight recorder, by their new and their old name (ProcessGroupNCCL.cpp)."""

UNBUFFERED = "-u"
"""torchrun starts Python with this option, too: output reaches the log at once."""


@dataclass(frozen=True)
class LaunchCommand:
    """The command line and environment of a launcher process."""

    command: Tuple[str, ...]  # as a person would type it
    argv: Tuple[str, ...]  # the same, with the words of our shim before each rank's program
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
    task = spec.task
    python = facts.python
    program = (task.target,)
    if task.kind != "command":
        program = (python.executable, UNBUFFERED, *((script,) if script else ("-m", task.target)))
    removed = spec.removed_env_of(node)
    without_removed = [word for name in removed for word in ("-u", name)]
    if removed:
        without_removed.insert(0, "env")
    attempt_folder = run_paths.attempt_folder(position.attempt)
    internal_env = {} if task.without_torchrun else _internal_env(spec, node, facts, attempt_folder)
    own_python = facts.host_python or spec.cluster.host_python
    site = run_paths.site if spec.watch.stacks == "auto" else ""
    hidden = ",".join((*internal_env, *removed))
    shim = (own_python, "-I", "-S", run_paths.shim, attempt_folder, site, hidden)
    if task.without_torchrun:
        return _command_by_us(
            spec, position, run_paths, program=program, shim=shim, without_removed=without_removed
        )
    return _torchrun_command(
        spec,
        position,
        python,
        run_paths,
        script=script,
        program=program,
        shim=shim,
        without_removed=without_removed,
        internal_env=internal_env,
    )


def _command_by_us(
    spec: Spec,
    position: NodePosition,
    run_paths: RunPaths,
    *,
    program: Tuple[str, ...],
    shim: Tuple[str, ...],
    without_removed: Sequence[str],
) -> LaunchCommand:
    """Return the command of a plain program, or of ranks that are started as srun starts tasks."""
    task = spec.task
    meeting = {
        "MASTER_ADDR": position.addr,
        "MASTER_PORT": str(position.port),
        "NODE_RANK": str(position.index),
        "NNODES": str(len(spec.nodes)),
    }
    if task.is_plain:
        # Of what torchrun sets, LOCAL_RANK and LOCAL_WORLD_SIZE are left out: by them libraries
        # that start their own workers (Lightning, accelerate) conclude that somebody else has.
        # TORCHELASTIC_* is left out as well: ranks would look for a store that torchrun serves.
        env = {**meeting, "RANK": str(position.index), "WORLD_SIZE": str(len(spec.nodes))}
        words = _expand(task.words, env) if task.args_expand else task.words
        return LaunchCommand(
            command=(*without_removed, *program, *words),
            argv=(*shim, *program, *words),
            arg_count=len(words),
            env=env,
        )
    words = (*program, *task.words)
    numbers = (str(position.nproc), str(position.first_rank))
    return LaunchCommand(
        command=("srun", f"--ntasks-per-node={position.nproc}", *words),
        argv=(*shim[:3], run_paths.spawner, *numbers, *shim, *words),
        arg_count=len(task.words),
        launcher=SPAWNER,
        env={**meeting, "WORLD_SIZE": str(position.world_size)},
    )


def _torchrun_command(
    spec: Spec,
    position: NodePosition,
    python: Interpreter,
    run_paths: RunPaths,
    *,
    script: str,
    program: Tuple[str, ...],
    shim: Tuple[str, ...],
    without_removed: Sequence[str],
    internal_env: Dict[str, str],
) -> LaunchCommand:
    """Return the command of torchrun, or of its predecessor.

    `without_removed` are the words before a program that take names out of its environment.
    """
    task = spec.task
    launcher_name, module = LAUNCHERS[task.entry]
    options = flags(spec, position)
    launcher = (python.executable, *_module_start(python, module), *options)
    started_launcher = launcher
    # One process of a node imports for its ranks, unless they have a memory policy of their own.
    if task.preload and task.kind != "command" and not spec.torchrun.numa_binding:
        started_launcher = (
            python.executable,
            UNBUFFERED,
            run_paths.preload,
            ",".join(task.preload),
            ",".join(internal_env),
            script or f"-m{task.target}",
            module,
            *options,
        )
    no_python: Tuple[str, ...] = ("--no_python", "--")
    if task.entry == "launch":  # it passes --local-rank by default, but only to Python
        no_python = ("--use_env", *no_python)
    words = (*program, *_local_rank_argument(task, python.torch), *task.words)
    escaped = tuple(map(escape, words))
    args = escaped[len(escaped) - len(task.words) :]
    arg_count = len(args)
    # Without the `--`, torchrun's argparse takes a script's `--n` for its own option.
    if without_removed:  # torchrun may set them itself, just before
        shown = (*no_python, *without_removed, *escaped)
        arg_count = len(words) - len(program)
    elif task.kind == "command":
        shown = (*no_python, task.target, *args)
    elif script:
        shown = ("--", escape(script), *args)
    else:
        shown = ("-m", "--", escape(task.target), *args)
    return LaunchCommand(
        command=(*launcher, *shown),
        argv=(*started_launcher, *no_python, shim[0], *map(escape, shim[1:]), *escaped),
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


def _expand(args: Sequence[str], env: Mapping[str, str]) -> Tuple[str, ...]:
    """Return arguments with `$NAME` and `${NAME}` of the rendezvous replaced; others stay."""
    values = {**env, "LOCAL_RANK": "0"}

    def value(reference: "re.Match[str]") -> str:
        return values.get(reference[1] or reference[2], reference[0])

    return tuple(re.sub(r"\$(?:(\w+)|\{(\w+)\})", value, arg) for arg in args)


def _local_rank_argument(task: Task, torch: str) -> Tuple[str, ...]:
    """Return the argument that torch.distributed.launch passes to Python programs by itself.

    With our shim before them it would get the argument instead.
    """
    if task.entry != "launch" or task.kind == "command":
        return ()
    name = "local_rank" if (torch_version(torch) or DASHED_SINCE) < DASHED_SINCE else "local-rank"
    return (f"--{name}={LOCAL_RANK_MACRO}",)


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


def rank_environment(
    spec: Spec,
    node: Node,
    facts: Facts,
    position: NodePosition,
    *,
    backend: str,
    interface: str,
    gpus: Tuple[int, ...],
    run_paths: RunPaths,
) -> Dict[str, str]:
    """Return our variables, overridden by the cluster's, the node's, and the task's.

    `RUNNER_ATTEMPT` is set from the second attempt on. Where torch's flight recorder is switched
    on, its dumps go beside the logs.
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
    env.update(spec.env_of(node))
    records = any(env.get(name, "0") != "0" for name in RECORDER_SIZE_VARS)
    if records and not any(name in env for name in RECORDER_PATH_VARS):
        prefix = posixpath.join(run_paths.attempt_folder(position.attempt), "flight_")
        env.update(dict.fromkeys(RECORDER_PATH_VARS, prefix))
    return env
