"""Order: a host's part of an attempt. Its program stays the same while its numbers change."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Dict, Optional, Tuple

from runner.core.codec import bounded
from runner.core.model.container import Container
from runner.core.model.facts import MAX_PORT, PORT
from runner.core.protocol.events import COUNT
from runner.core.protocol.paths import ATTEMPT, NODE_NAME, RANK, RUN_ID

MAX_NPROC = 1 << 16
"""Limit of a decoded number of processes: `Order.ranks` lists as many."""

LAUNCHERS = {"torchrun": "torchrun", "launch": "torch.distributed.launch", "srun": "srun"}
"""What starts the ranks in messages, by `Program.entry`; for srun it is our spawner."""


@dataclass(frozen=True)
class Hub:
    """The hub of an attempt: supervisors connect to it, so that the failure of one ends all."""

    node: str  # whose supervisor listens: the master
    addr: str  # on the training network
    port: int
    member_count: int = 0  # the number of other nodes
    lost_s: float = 15.0  # of silence, after which a node is declared lost
    min_nodes: int = 0  # with which the attempt goes on; 0 for all of them
    required: bool = True  # it cannot go on without `node`, which has the ranks' store
    spares: Tuple[str, ...] = ()  # stand by: no member waits for them, and their loss ends nothing


@dataclass(frozen=True)
class DebugRank:
    """A rank that debugpy starts, and the port of its node's loopback where a client is awaited."""

    rank: int = field(metadata=RANK)
    port: int = field(default=5678, metadata=bounded(1, MAX_PORT))


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
    expands_args: bool = False  # whether `$MASTER_ADDR` and the like in them are replaced
    env: Dict[str, str] = field(default_factory=dict)  # overrides the host's own (after `setup`)
    hidden: Tuple[str, ...] = ()  # names that ranks do not get of it
    path_folder: str = ""  # put first on the PATH, "" for none
    host_python: str = "python3"  # the interpreter of the shim before each rank
    dumps_stacks: bool = False  # whether ranks print their Python stacks when they are asked
    records_flight: bool = False  # whether torch's flight recorder writes beside the logs


@dataclass(frozen=True)
class Order:
    """A host's part of the plan, large on purpose: all that its supervisor is to know.

    `core/launch.py` makes the command and its environment from it.
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
    grace_s: float = 15.0  # between TERM and KILL
    disconnect_s: float = 0.0  # without a controller, before the run is stopped; 0: never
    detached: bool = False  # whether the hub has begun the attempt, and no launch watches it
    hub: Optional[Hub] = None  # None if there is no other node
    container: Optional[Container] = None  # that the program runs in
    stall_s: float = 0.0  # without progress on any rank, before a report; 0 for never
    stop_on_stall: bool = False  # whether a stalled attempt is stopped
    metrics: Tuple[str, ...] = ()  # files below `cwd` that grow; if there are any, only they count
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
        return LAUNCHERS.get(self.program.entry, "")

    @property
    def spawns_ranks(self) -> bool:
        return self.program.entry == "srun"

    @property
    def restarts_ranks(self) -> bool:
        return self.first_rank is None and self.program.max_restarts > 0

    @property
    def reserve_port(self) -> int:
        """The port that is kept until the program listens there; 0 for none."""
        return 0 if self.node_rank or self.is_standby else self.master_port
