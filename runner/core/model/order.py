"""Order: a node's part of the plan, as its supervisor carries it out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, Optional, Tuple


@dataclass(frozen=True)
class Hub:
    """The hub of an attempt: supervisors connect to it, so that the failure of one ends all.

    Attributes:
        node: The node whose supervisor listens: the master.
        addr: Its address on the training network.
        port: Its TCP port.
        member_count: The number of other nodes.
        lost_s: Seconds of silence after which a node is declared lost.
        min_nodes: The fewest nodes with which the attempt goes on; 0 for all of them.
        required: Whether the attempt cannot go on without `node`, which has the ranks' store.
        spares: Nodes that stand by: no member waits for them, and their loss ends nothing.
        required_members: Nodes that are declared lost if they do not join; () if a controller
            watches for that.
    """

    node: str
    addr: str
    port: int
    member_count: int = 0
    lost_s: float = 15.0
    min_nodes: int = 0
    required: bool = True
    spares: Tuple[str, ...] = ()
    required_members: Tuple[str, ...] = ()


@dataclass(frozen=True)
class Sidecar:
    """A server that one node runs for the programs of all nodes of an attempt.

    Attributes:
        name: Its name; also the stem of its logs and the folder it runs in.
        node: The node whose supervisor runs it.
        addr: The numeric address it listens on.
        port: Its TCP port.
        argv: Its command line.
    """

    name: str
    node: str
    addr: str
    port: int
    argv: Tuple[str, ...] = ()


@dataclass(frozen=True)
class Order:
    """A host's part of the plan, large on purpose: all that its supervisor is to know.

    Attributes:
        run_id: The run.
        node: The node's name in the YAML.
        attempt: The run's n-th start, from 0.
        workdir: The folder of runs on this host, absolute.
        argv: The launcher process, ready for exec; () for a spare, which stands by.
        env: Its environment, overriding the host's own (after `setup`).
        cwd: Its working directory; created if it is in the run folder.
        ranks: The global ranks it starts here, by local rank; () if torch assigns them.
        shim: The path of the rank shim; `argv` or `env` refer to it.
        shim_python: The interpreter that runs the shim.
        rank_prefix: What the shim puts before the arguments of a rank (the task's interpreter).
        hidden_env: Names of `env` that are removed from the environment of ranks.
        release: The release that is copied into the run's `work` first; "" for none.
        reserve_port: The port reserved until the program listens on it; 0 for none.
        grace_s: Seconds between TERM and KILL.
        disconnect_s: Seconds without a controller after which the run is stopped; 0 for never.
        hub: The hub of the attempt; None if there is no other node.
        sidecar: The server that has to listen before the program starts; None for none.
        stall_s: Seconds without progress on any rank after which that is reported; 0 for never.
        stop_on_stall: Whether a stalled attempt is stopped.
        metrics: Files below `cwd` that grow with each step; if there are any, only they count.
        stacks: Whether ranks are prepared to dump their Python stacks.
        launcher: The name of a program that starts the ranks and forwards TERM to them; "" if
            the launcher process is the one rank itself, in its shim.
        nproc: The number of ranks it starts here.
        restarts_ranks: Whether the program restarts failed ranks itself.
        rejoin_count: How often this node was lost in this attempt and rejoined it.
        relaunches_left: The number of relaunches left after this attempt.
        voter_count: The number of supervisors, standby ones included, that decide on a relaunch
            of a detached run; 0 if they cannot.
    """

    run_id: str
    node: str
    attempt: int
    workdir: str
    argv: Tuple[str, ...]
    env: Dict[str, str]
    cwd: str
    ranks: Tuple[int, ...]
    shim: str
    shim_python: str
    rank_prefix: Tuple[str, ...] = ()
    hidden_env: Tuple[str, ...] = ()
    release: str = ""
    reserve_port: int = 0
    grace_s: float = 15.0
    disconnect_s: float = 600.0
    hub: Optional[Hub] = None
    sidecar: Optional[Sidecar] = None
    stall_s: float = 0.0
    stop_on_stall: bool = False
    metrics: Tuple[str, ...] = ()
    stacks: bool = False
    launcher: str = "torchrun"
    nproc: int = 0
    restarts_ranks: bool = False
    rejoin_count: int = 0
    relaunches_left: int = 0
    voter_count: int = 0

    @property
    def is_standby(self) -> bool:
        """Whether it is that of a spare, which starts nothing."""
        return not self.argv
