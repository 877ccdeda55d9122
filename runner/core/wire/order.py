"""Order: a host's part of an attempt; the command and its environment are made from it.

Its program stays the same while its numbers change. Nothing is planned here: hosts make the command
of each attempt, and `dry_run` prints what is made.
"""

from __future__ import annotations

import posixpath
from dataclasses import dataclass, field
from typing import Callable, Dict, Mapping, Optional, Sequence, Tuple

from runner.core.wire.codec import bounded
from runner.core.wire.container import Container
from runner.core.wire.events import COUNT
from runner.core.wire.facts import PORT
from runner.core.wire.paths import ATTEMPT, NODE_NAME, RANK, RUN_ID, RunPaths
from runner.core.wire.text import bracket_ipv6

MAX_NPROC = 1 << 16
"""Limit of a decoded number of processes: `Order.ranks` lists as many."""


@dataclass(frozen=True)
class Hub:
    """The hub of an attempt: supervisors connect to it, so that the failure of one ends all."""

    node: str  # whose supervisor listens: the master
    addr: str  # on the training network
    port: int
    lost_s: float = 15.0  # of silence, after which a node is declared lost
    spares: Tuple[str, ...] = ()  # stand by: no member waits for them, and their loss ends nothing


@dataclass(frozen=True)
class Notify:
    """Where a run is told about, and what is told of it that a supervisor does not know."""

    targets: Tuple[str, ...]  # commands
    cluster: str
    task: str
    nodes: Tuple[str, ...]  # in rank order
    secrets: Tuple[str, ...] = ()  # names of variables whose values are not told
    program: str = "runner"  # what starts this program where the run was launched


@dataclass(frozen=True)
class Program:
    """What an order starts, as far as it is the same in every attempt; large on purpose."""

    entry: str = "plain"  # or torchrun, launch, srun
    launcher: Tuple[str, ...] = ()  # the words that start torchrun, up to its options
    options: Tuple[str, ...] = ()  # torchrun's, after those of the rendezvous
    rdzv_backend: str = "static"
    rdzv_endpoint: str = ""  # of etcd
    rdzv_conf: Dict[str, str] = field(default_factory=dict)
    max_restarts: int = 0
    words: Tuple[str, ...] = ()  # that start a rank, up to its arguments
    args: Tuple[str, ...] = ()  # of a rank, before torchrun's templates
    env: Dict[str, str] = field(default_factory=dict)  # overrides the host's own (after `setup`)
    hidden: Tuple[str, ...] = ()  # names that ranks do not get of it
    path_folder: str = ""  # put first on the PATH, "" for none
    host_python: str = "python3"  # the interpreter of the shim before each rank
    dumps_stacks: bool = False  # whether ranks print their Python stacks when they are asked
    records_flight: bool = False  # whether torch's flight recorder writes beside the logs


@dataclass(frozen=True)
class Order:
    """A host's part of the plan, large on purpose: all that its supervisor is to know.

    `core/wire/order.py` makes the command and its environment from it.
    """

    run_id: str = field(metadata=RUN_ID)
    node: str = field(metadata=NODE_NAME)
    attempt: int = field(metadata=ATTEMPT)  # the run's n-th start, from 0
    workdir: str  # of runs on this host, absolute
    cwd: str  # created if it is in the run folder
    program: Program = Program()
    node_rank: int = field(default=0, metadata=COUNT)  # 0 is the master
    nnodes: int = field(default=1, metadata=COUNT)
    nproc: int = field(default=1, metadata=bounded(0, MAX_NPROC))  # ranks that it starts here
    first_rank: Optional[int] = field(default=0, metadata=RANK)  # None if torch assigns them
    world_size: int = field(default=1, metadata=COUNT)
    master_addr: str = "127.0.0.1"  # where the ranks meet
    master_port: int = field(default=0, metadata=PORT)  # reserved there; 0 for none
    ports: Tuple[int, ...] = field(default=(), metadata=PORT)  # and for later attempts
    local_addr: str = ""  # at which others reach the ranks of this node
    min_nodes: int = field(default=0, metadata=COUNT)  # of an elastic attempt, else 0
    max_nodes: int = field(default=0, metadata=COUNT)
    is_standby: bool = False  # whether it is that of a spare, which starts nothing
    release: str = ""  # copied into the run's `work` first; "" for none
    keep: Tuple[str, ...] = ()  # folders below `cwd` that outlive the run
    keep_place: str = ""  # where these are, below `workdir/keep`: PROJECT/TASK
    grace_s: float = 15.0  # between TERM and KILL
    disconnect_s: float = 0.0  # without a controller, before the run is stopped; 0: never
    detached: bool = False  # whether the hub has begun the attempt, and no launch watches it
    hub: Optional[Hub] = None  # None if there is no other node
    container: Optional[Container] = None  # that the program runs in
    stall_s: float = 0.0  # without progress on any rank, before a report; 0 for never
    stop_on_stall: bool = False  # whether a stalled attempt is stopped
    progress_pattern: str = ""  # of the program's own lines
    sample_s: float = 0.0  # between two samples of the host's load; 0 for never
    rejoin_count: int = 0  # how often this node was lost in this attempt and rejoined it
    relaunches_left: int = 0  # after this attempt
    relaunch_pause_s: float = 0.0  # before the next one
    relaunches_stalls: bool = False  # whether one follows an attempt that stalled
    decides: bool = False  # whether its program's success is that of the run
    notify: Optional[Notify] = None  # for the first node, where someone is to be told

    @property
    def ranks(self) -> Tuple[int, ...]:
        """The global ranks, by local rank; () if torch assigns them."""
        if self.first_rank is None:
            return ()
        return tuple(range(self.first_rank, self.first_rank + self.nproc))

    @property
    def launcher(self) -> str:
        """What starts the ranks and passes on TERM, "" if the program is the one rank."""
        return "" if self.program.entry == "plain" else self.program.entry

    @property
    def spawns_ranks(self) -> bool:
        return self.program.entry == "srun"

    @property
    def restarts_ranks(self) -> bool:
        return self.first_rank is None and self.program.max_restarts > 0


LOCAL_RANK_MACRO = "${local_rank}"

RECORDER_PATH_VARS = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
"""Where torch's flight recorder writes, by the new and the old name (ProcessGroupNCCL.cpp)."""

NO_PYTHON = ("--no_python", "--")
"""The last options of torchrun. Without the `--`, it takes a script's `--n` for its own."""


def command_words(order: Order) -> Tuple[str, ...]:
    """Return the launcher process's words, with those of our shim before each rank's program."""
    program = order.program
    paths = RunPaths(order.workdir, order.run_id, order.node)
    python = (program.host_python, "-I", "-S")
    site = paths.site if program.dumps_stacks else ""
    folder = paths.attempt_folder(order.attempt)
    shim = (*python, paths.shim, folder, site, ",".join(program.hidden))
    rank = (*program.words, *program.args)
    if program.entry == "plain":
        return (*shim, *rank)
    if order.spawns_ranks:
        numbers = (str(order.nproc), str(order.first_rank or 0))
        return (*python, paths.spawner, *numbers, *shim, *rank)
    # torchrun takes the first word, the program, as it is.
    started = (shim[0], *map(escape, (*shim[1:], *rank)))
    return (*program.launcher, *torchrun_options(order), *NO_PYTHON, *started)


def environment(order: Order) -> Dict[str, str]:
    """Return the launcher process's environment, as far as it differs from the host's.

    `RUNNER_ATTEMPT` is set from the second attempt on.
    """
    program = order.program
    folder = RunPaths(order.workdir, order.run_id, order.node).attempt_folder(order.attempt)
    uses_torchrun = program.entry == "torchrun"
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


def is_indispensable(order: Order, name: str) -> bool:
    """Return whether the loss of the node `name` ends the attempt, however many nodes remain.

    `order` is that of any node: the controller and the hub come to the same decision.
    """
    if order.hub is None or not order.restarts_ranks:
        return True
    has_store = order.master_port > 0  # of the ranks, where the hub is
    return has_store and order.hub.node == name


def nodes_after_loss(order: Order, name: str, remaining: int) -> int:
    """Return with how many of `remaining` nodes the attempt goes on without `name`, 0 if it ends.

    `order` is that of any node, as in `is_indispensable`.
    """
    if order.hub is None or is_indispensable(order, name):
        return 0
    return remaining if remaining >= (order.min_nodes or order.nnodes) else 0
