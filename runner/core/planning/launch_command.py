"""Launch command: the program of a node's order, and the command as a person would type it."""

from __future__ import annotations

import posixpath
import re

from runner.core.spec import Node, Spec, Task
from runner.core.wire.facts import Facts, Interpreter
from runner.core.wire.order import (
    LOCAL_RANK_MACRO,
    NO_PYTHON,
    RECORDER_PATH_VARS,
    Order,
    Program,
    escape,
    rank_args,
    torchrun_options,
)
from runner.core.wire.paths import RunPaths

LAUNCHER_MODULES = {"torchrun": "torch.distributed.run", "launch": "torch.distributed.launch"}
"""The launcher's module, by `Task.entry`."""

CPP_LOG_LEVEL = "TORCH_CPP_LOG_LEVEL"
"""torch's own variable for the least severe messages of its C++ code that are printed."""

TORCHRUN_EXTRA_GRACE_S = 10
"""torchrun kills rank shims with their ranks: its timeout is longer than ours, so that shims can
record how their ranks ended."""

DASHED_SINCE = (2, 0)
"""The first torch whose torch.distributed.launch passes `--local-rank`, not `--local_rank`."""

ADDED_IN = {
    "local_addr": (2, 0),
    "numa_binding": (2, 9),
    "signals_to_handle": (2, 10),
    "shutdown_timeout": (2, 12),
}
"""The first torch whose torchrun has an option; all others are older than 1.12.

Read in torch/distributed/run.py of the wheels of 1.12.0, 1.13.0 and 2.0.0 to 2.12.0 on PyPI.
"""

SYSTEM_FOLDERS = ("/usr/bin", "/usr/local/bin", "/bin")
"""The folders of programs that are on every PATH, with much else than an interpreter in them."""

NO_SHARED_STORE = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
"""For nodes that come and go: torch would keep the address of the first store
(`_bootstrap_store_info` in torch/distributed/elastic/rendezvous/dynamic_rendezvous.py), and the
remaining nodes would look for a rank 0 that has left."""

DEBUG_VARIABLE = "RUNNER_DEBUG_RANK"
"""RANK:PORT, by which the shim (`host/ranks/shim.py`) starts debugpy; ranks do not get it."""

RECORDER_SIZE_VARS = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
"""Variables that switch on torch's flight recorder, by their new and their old name."""

UNBUFFERED = "-u"
"""torchrun starts Python with this option, too: output reaches the log at once."""


def node_program(
    spec: Spec,
    node: Node,
    facts: Facts,
    *,
    script: str,
    rank_env: dict[str, str],
    run_paths: RunPaths,
) -> Program:
    """Return what a node starts.

    `script` is the path of the script on the host, "" for a module or a command.
    """
    task = spec.task
    python = facts.python
    words: tuple[str, ...] = (task.target,)
    if task.kind != "command":
        words = (python.executable, UNBUFFERED, *((script,) if script else ("-m", task.target)))
    env = {**NO_SHARED_STORE, **rank_env} if spec.elastic else {**rank_env}
    hidden: tuple[str, ...] = spec.removed_env_of(node)
    launcher: tuple[str, ...] = ()
    if not task.without_torchrun:
        internal_env = _internal_env(spec, node, facts)
        env.update(internal_env)
        internal_names = ("PET_LOG_DIR", *internal_env)
        hidden = (*internal_names, *hidden)
        module = LAUNCHER_MODULES[task.entry]
        launcher = (python.executable, *_module_start(python, module))
        # One process of a node imports for its ranks, unless each has a memory policy of its own.
        if task.preload and task.kind != "command" and not spec.torchrun.numa_binding:
            launcher = (
                python.executable,
                UNBUFFERED,
                run_paths.preload,
                ",".join(task.preload),
                ",".join(internal_names),
                script or f"-m{task.target}",
                module,
            )
    if spec.debug_rank:
        env[DEBUG_VARIABLE] = f"{spec.debug_rank.rank}:{spec.debug_rank.port}"
    records_flight = any(rank_env.get(name, "0") != "0" for name in RECORDER_SIZE_VARS)
    return Program(
        entry=task.entry,
        launcher=launcher,
        options=_options(spec),
        rdzv_backend=spec.rendezvous.backend,
        rdzv_endpoint=spec.rendezvous.endpoint,
        rdzv_conf=spec.torchrun.rdzv_conf,
        max_restarts=spec.torchrun.max_restarts,
        words=words,
        args=(*_local_rank_argument(task, python.torch), *task.words),
        expands_args=task.is_plain and task.args_expand,
        env=env,
        hidden=hidden,
        path_folder=_path_folder(spec, node, facts),
        host_python=facts.host_python or spec.cluster.host_python,
        dumps_stacks=spec.watch.stacks == "auto",
        records_flight=records_flight and not any(name in rank_env for name in RECORDER_PATH_VARS),
    )


def typed_command(
    spec: Spec, node: Node, facts: Facts, order: Order, script: str
) -> tuple[tuple[str, ...], int]:
    """Return the command of an order without our shim.

    Returns:
        The command, and how many words at its end are arguments of the program.
    """
    task = spec.task
    program = order.program
    without_removed = [word for name in spec.removed_env_of(node) for word in ("-u", name)]
    if without_removed:
        without_removed.insert(0, "env")
    if task.is_plain:
        return (*without_removed, *program.words, *rank_args(order)), len(program.args)
    if order.spawns_ranks:
        words = (*program.words, *program.args)
        return ("srun", f"--ntasks-per-node={order.nproc}", *words), len(program.args)
    python = facts.python
    module = LAUNCHER_MODULES[task.entry]
    launcher = (python.executable, *_module_start(python, module), *torchrun_options(order))
    no_python = NO_PYTHON[task.entry]
    args = tuple(map(escape, program.args))
    if without_removed:  # torchrun may set them itself, just before
        shown = (*no_python, *without_removed, *map(escape, program.words), *args)
        return (*launcher, *shown), len(args)
    args = args[len(args) - len(task.words) :]
    if task.kind == "command":
        shown = (*no_python, task.target, *args)
    elif script:
        shown = ("--", escape(script), *args)
    else:
        shown = ("-m", "--", escape(task.target), *args)
    return (*launcher, *shown), len(args)


def _module_start(python: Interpreter, module: str) -> tuple[str, ...]:
    """Return the words that start a launcher; `python -m` alone prefers the user's modules."""
    version = torch_version(python.version)
    if version and version < (3, 11):
        return ("-c", f"import sys; del sys.path[0]; from {module} import main; sys.exit(main())")
    return ("-P", "-m", module) if version else ("-m", module)


def _internal_env(spec: Spec, node: Node, facts: Facts) -> dict[str, str]:
    """Return variables for torchrun, hidden from ranks and left out of pasted commands.

    With c10d the store ends with the master's torchrun. The others then print C++ stack traces of
    connections that were closed or have broken pipes, also where every rank has succeeded.
    """
    timeout = spec.torchrun.shutdown_timeout or round(spec.grace_s) + TORCHRUN_EXTRA_GRACE_S
    env = {"PET_SHUTDOWN_TIMEOUT": str(timeout)}
    is_own = CPP_LOG_LEVEL in facts.preset_env or CPP_LOG_LEVEL in spec.env_of(node)
    if spec.rendezvous.backend == "c10d" and not is_own:
        env[CPP_LOG_LEVEL] = "ERROR"
    return env


def _options(spec: Spec) -> tuple[str, ...]:
    """Return torchrun's options, but for those of the rendezvous, as far as they are set."""
    options = spec.torchrun
    interval = options.monitor_interval
    chosen = {
        "monitor_interval": "" if interval is None else f"{interval:g}",
        "role": options.role,
        "start_method": options.start_method,
        "signals_to_handle": ",".join(options.signals_to_handle),
        "numa_binding": options.numa_binding,
    }
    return tuple(f"--{name}={value}" for name, value in chosen.items() if value)


def torch_version(torch: str) -> tuple[int, int] | None:
    """Return the first two numbers of a version, None if it cannot be parsed."""
    match = re.match(r"(\d+)\.(\d+)", torch)
    return (int(match[1]), int(match[2])) if match else None


def unsupported_options(spec: Spec, torch: str) -> list[tuple[str, str, str]]:
    """Return the options that a torch lacks: the key, the first torch that has it, the next step.

    A version that cannot be parsed counts as new enough.
    """
    version = torch_version(torch)
    if version is None:
        return []
    requested = {
        "local_addr": spec.rendezvous.backend != "static",
        "numa_binding": bool(spec.torchrun.numa_binding),
        "signals_to_handle": bool(spec.torchrun.signals_to_handle),
        "shutdown_timeout": spec.torchrun.shutdown_timeout is not None,
    }
    unsupported = []
    for name, since in ADDED_IN.items():
        if requested[name] and version < since:
            key = f"torchrun.{name}"
            hint = f"leave it out ({key}=null), or install a newer torch"
            if name == "local_addr":
                key = f"rendezvous={spec.rendezvous.backend} (--local_addr)"
                hint = "install a newer torch there, or set rendezvous=static"
            unsupported.append((key, f"{since[0]}.{since[1]}", hint))
    return unsupported


def _local_rank_argument(task: Task, torch: str) -> tuple[str, ...]:
    """Return the argument that torch.distributed.launch passes to Python programs by itself.

    With our shim before them it would get the argument instead.
    """
    if task.entry != "launch" or task.kind == "command":
        return ()
    name = "local_rank" if (torch_version(torch) or DASHED_SINCE) < DASHED_SINCE else "local-rank"
    return (f"--{name}={LOCAL_RANK_MACRO}",)


def _path_folder(spec: Spec, node: Node, facts: Facts) -> str:
    """Return the folder of the task's interpreter, which comes first on the PATH of programs.

    "" where a PATH of the user's says what is found, where the interpreter was itself found on the
    host's, and for the system's own: /usr/bin must not come before what `cluster.setup` put there.
    """
    folder = posixpath.dirname(facts.python.executable)
    if "/" not in spec.python_of(node) or "PATH" in spec.env_of(node) or folder in SYSTEM_FOLDERS:
        return ""
    return folder


def rank_environment(
    spec: Spec,
    node: Node,
    facts: Facts,
    *,
    nproc: int,
    backend: str,
    interface: str,
    gpus: tuple[int, ...],
) -> dict[str, str]:
    """Return our variables, overridden by the cluster's, the node's, and the task's."""
    env = {
        "DIST_BACKEND": backend,
        "OMP_NUM_THREADS": str(max(1, int(facts.cores / nproc))),
        "RUNNER_RUN_ID": spec.run_id,
        "RUNNER_NODE": node.name,
    }
    if facts.environment:
        env["RUNNER_PREPARED"] = facts.environment
    if interface:
        env["GLOO_SOCKET_IFNAME"] = interface
        env["TP_SOCKET_IFNAME"] = interface
        env["NCCL_SOCKET_IFNAME"] = f"={interface}"
    env = {name: value for name, value in env.items() if name not in facts.preset_env}
    if node.gpu_ids or node.gpu_count is not None:
        if gpus:
            env["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"  # as in the facts; CUDA's: fastest first
        # In an engine's container those that it was given are numbered anew.
        shown = range(len(gpus)) if spec.container.engine else gpus
        env["CUDA_VISIBLE_DEVICES"] = ",".join(str(index) for index in shown)
    env.update(spec.env_of(node))
    return env
