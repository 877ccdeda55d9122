"""A host's part of the plan: all its supervisor needs, and nothing of torchrun."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, Optional, Tuple


@dataclass(frozen=True)
class Hub:
    """Where the supervisors of one attempt keep in touch, so that one's failure ends all.

    Attributes:
        node: The node whose supervisor listens: the master.
        addr: Its address on the training network.
        port: Its TCP port.
        member_count: How many other nodes there are.
        lost_s: Seconds of silence after which a node counts as lost.
        min_nodes: With so many nodes the run goes on; 0 for all of them.
        required: Whether the run cannot go on without `node`: the ranks' store is there.
        spares: Nodes that only stand by: nobody waits for them, and their loss ends nothing.
        required_members: Nodes that are lost if they do not come; () where a controller watches for
            that.
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
    """A server that the programs of an attempt need, run by one of its nodes for all of them.

    Attributes:
        name: Its own; also the stem of its logs, and the folder it runs in while it lives.
        node: The node whose supervisor runs it.
        addr: The address it listens at, a number.
        port: Its TCP port.
        argv: What starts it there.
    """

    name: str
    node: str
    addr: str
    port: int
    argv: Tuple[str, ...] = ()


@dataclass(frozen=True)
class Order:
    """What one supervisor shall start, watch and end.

    Attributes:
        run_id: The run.
        node: The node's name in the YAML.
        attempt: The run's n-th start, from 0.
        workdir: Where runs are kept on this host, absolute.
        argv: The program, ready for exec; () for a spare, which starts nothing and stands by.
        env: Its environment, over the host's own (after `setup`).
        cwd: Its working directory; created when it lies in the run folder.
        ranks: The global ranks it will start here, by local rank; () where torch numbers them.
        shim: Where the rank shim is to be put; `argv` or `env` refer to it.
        shim_python: The interpreter that runs the shim.
        rank_prefix: What the shim puts before a rank's own arguments (the task's interpreter).
        hidden_env: Names of `env` that a rank shall not see.
        release: The release to copy into the run's `work` first; "" for none.
        reserve_port: The port kept from others until the program listens on it; 0 for none.
        grace_s: Seconds between TERM and KILL.
        disconnect_s: Seconds without a controller after which the run is stopped; 0 for never.
        hub: How it keeps in touch with the other nodes; None where there is no other.
        sidecar: What has to listen before the program starts; None for nothing.
        stall_s: Seconds without progress of any rank after which that is said; 0 for never.
        stop_on_stall: Whether the run is stopped then.
        metrics: Files below `cwd` that grow with each step; where there are any, only they count.
        stacks: Whether the ranks are prepared to tell their Python stacks.
        launcher: What the program is that starts the ranks and hands TERM on to them; "" where it
            is the one rank itself, in its shim, with whatever it starts.
        nproc: How many ranks it will start here; 0 in an order from before, which names them.
        restarts_ranks: Whether the program starts ranks that failed anew by itself, and nobody else
            is to act on it.
        rejoin_count: How often this attempt began here before: a node that was lost came back.
        relaunches_left: How often the run may start once more after this attempt.
        voter_count: How many supervisors decide about that once no controller is needed, those that
            stand by included; 0 where they cannot.
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
        """Whether there is nothing to start."""
        return not self.argv
