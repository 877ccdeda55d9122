"""Launch: the command line and the environment that an order's numbers and its program make.

Nothing is planned here: hosts call it for each attempt, and `dry_run` prints what it makes.
"""

from __future__ import annotations

import posixpath
import re
from typing import Callable, Dict, Mapping, Sequence, Tuple

from runner.core.model.order import Order
from runner.core.protocol.paths import RunPaths
from runner.core.text import bracket_ipv6

LOCAL_RANK_MACRO = "${local_rank}"

RECORDER_PATH_VARS = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
"""Where torch's flight recorder writes, by the new and the old name (ProcessGroupNCCL.cpp)."""

NO_PYTHON = {
    "torchrun": ("--no_python", "--"),
    "launch": ("--use_env", "--no_python", "--"),  # it passes --local-rank by default
}
"""The last options of a launcher. Without the `--`, torchrun's argparse takes a script's `--n` for
its own option."""


def command_words(order: Order) -> Tuple[str, ...]:
    """Return the launcher process's words, with those of our shim before each rank's program."""
    program = order.program
    paths = RunPaths(order.workdir, order.run_id, order.node)
    python = (program.host_python, "-I", "-S")
    site = paths.site if program.dumps_stacks else ""
    folder = paths.attempt_folder(order.attempt)
    shim = (*python, paths.shim, folder, site, ",".join(program.hidden))
    rank = (*program.words, *rank_args(order))
    if program.entry == "plain":
        return (*shim, *rank)
    if order.spawns_ranks:
        numbers = (str(order.nproc), str(order.first_rank or 0))
        return (*python, paths.spawner, *numbers, *shim, *rank)
    # torchrun takes the first word, the program, as it is.
    started = (shim[0], *map(escape, (*shim[1:], *rank)))
    return (*program.launcher, *torchrun_options(order), *NO_PYTHON[program.entry], *started)


def rank_args(order: Order) -> Tuple[str, ...]:
    """Return a rank's arguments: `$NAME` and `${NAME}` of the rendezvous may be replaced."""
    program = order.program
    if not program.expands_args:
        return program.args
    values = {**_meeting(order), "LOCAL_RANK": "0"}

    def value(reference: "re.Match[str]") -> str:
        return values.get(reference[1] or reference[2], reference[0])

    return tuple(re.sub(r"\$(?:(\w+)|\{(\w+)\})", value, arg) for arg in program.args)


def environment(order: Order) -> Dict[str, str]:
    """Return the launcher process's environment, as far as it differs from the host's.

    `RUNNER_ATTEMPT` is set from the second attempt on.
    """
    program = order.program
    folder = RunPaths(order.workdir, order.run_id, order.node).attempt_folder(order.attempt)
    uses_torchrun = program.entry in NO_PYTHON
    env = {} if uses_torchrun else _meeting(order)
    if order.attempt:
        env["RUNNER_ATTEMPT"] = str(order.attempt)
    if program.records_flight:
        env.update(dict.fromkeys(RECORDER_PATH_VARS, posixpath.join(folder, "flight_")))
    env.update(program.env)
    if uses_torchrun:
        env["PET_LOG_DIR"] = posixpath.join(folder, "torchrun")
    return env


def _meeting(order: Order) -> Dict[str, str]:
    """Return what torchrun would set, for programs without it.

    LOCAL_RANK and LOCAL_WORLD_SIZE are left out: by them libraries that start their own workers
    (Lightning, accelerate) conclude that somebody else has. TORCHELASTIC_* is left out as well:
    ranks would look for a store that torchrun serves.
    """
    env = {
        "MASTER_ADDR": order.master_addr,
        "MASTER_PORT": str(order.master_port),
        "NODE_RANK": str(order.node_rank),
        "NNODES": str(order.nnodes),
    }
    if order.program.entry == "plain":
        return {**env, "RANK": str(order.node_rank), "WORLD_SIZE": str(order.nnodes)}
    return {**env, "WORLD_SIZE": str(order.world_size)}


def escape(arg: str) -> str:
    """Double every `$` except in torchrun's `${local_rank}` macro.

    torch passes script arguments through `string.Template.safe_substitute`
    (torch/distributed/elastic/utils/api.py), which would turn `$$` into `$`.
    """
    parts = arg.split(LOCAL_RANK_MACRO)
    return LOCAL_RANK_MACRO.join(part.replace("$", "$$") for part in parts)


def torchrun_options(order: Order) -> Tuple[str, ...]:
    """Return torchrun's options, in the order a person would type them."""
    return (*BACKENDS[order.program.rdzv_backend](order), *order.program.options)


def _static(order: Order) -> Sequence[str]:
    """Give every node its rank and the address of the store.

    `--max_restarts` is always 0: torch has one store without a prefix per restart there, so
    restarted workers would read stale keys (torch/distributed/elastic/rendezvous/
    static_tcp_rendezvous.py). We relaunch instead.
    """
    return (
        f"--nnodes={order.nnodes}",
        f"--nproc_per_node={order.nproc}",
        f"--node_rank={order.node_rank}",
        f"--master_addr={order.master_addr}",
        f"--master_port={order.master_port}",
        _id_flag(order),
        *_conf_flag(order.program.rdzv_conf),
        "--max_restarts=0",
    )


def _standalone(order: Order) -> Sequence[str]:
    """Let the torchrun of a single node choose a port and an id."""
    return (
        "--standalone",
        f"--nproc_per_node={order.nproc}",
        f"--local_addr={order.master_addr}",
        *_conf_flag(order.program.rdzv_conf),
        f"--max_restarts={order.program.max_restarts}",
    )


def _c10d(order: Order) -> Sequence[str]:
    """Put the store on the master; torch would guess from host names who opens it."""
    endpoint = f"{bracket_ipv6(order.master_addr)}:{order.master_port}"
    is_host = "0" if order.node_rank else "1"
    return _dynamic(order, endpoint, {**order.program.rdzv_conf, "is_host": is_host})


def _etcd(order: Order) -> Sequence[str]:
    """Use an etcd that somebody keeps running."""
    return _dynamic(order, order.program.rdzv_endpoint, order.program.rdzv_conf)


def _dynamic(order: Order, endpoint: str, conf: Mapping[str, str]) -> Sequence[str]:
    max_nodes = order.max_nodes or order.nnodes
    is_range = order.min_nodes not in (0, max_nodes)
    local_addr = [f"--local_addr={order.local_addr}"] if order.local_addr else []
    return (
        f"--nnodes={order.min_nodes}:{max_nodes}" if is_range else f"--nnodes={max_nodes}",
        f"--nproc_per_node={order.nproc}",
        f"--rdzv_backend={order.program.rdzv_backend}",
        f"--rdzv_endpoint={endpoint}",
        _id_flag(order),
        *_conf_flag(conf),
        *local_addr,
        f"--max_restarts={order.program.max_restarts}",
    )


def _id_flag(order: Order) -> str:
    """Name the rendezvous, differently in every attempt."""
    suffix = f"-{order.attempt}" if order.attempt else ""
    return f"--rdzv_id={order.run_id}{suffix}"


def _conf_flag(settings: Mapping[str, str]) -> Tuple[str, ...]:
    words = ",".join(f"{name}={value}" for name, value in settings.items())
    return (f"--rdzv_conf={words}",) if words else ()


BACKENDS: Dict[str, Callable[[Order], Sequence[str]]] = {
    "static": _static,
    "standalone": _standalone,
    "c10d": _c10d,
    "etcd": _etcd,
    "etcd-v2": _etcd,
}
