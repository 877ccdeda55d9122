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
        members: How many other nodes there are.
        lost_s: Seconds of silence after which a node counts as lost.
        spares: Nodes that only stand by: nobody waits for them, and their loss ends nothing.
    """

    node: str
    addr: str
    port: int
    members: int = 0
    lost_s: float = 15.0
    spares: Tuple[str, ...] = ()


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
        ranks: The global ranks it will start here, by local rank.
        shim: Where the rank shim is to be put; `argv` or `env` refer to it.
        shim_python: The interpreter that runs the shim.
        rank_prefix: What the shim puts before a rank's own arguments (the task's interpreter).
        hide: Names of `env` that a rank shall not see.
        release: The release to copy into the run's `work` first; "" for none.
        hold_port: The port kept from others until the program listens on it; 0 for none.
        grace_s: Seconds between TERM and KILL.
        disconnect_s: Seconds without a controller after which the run is stopped; 0 for never.
        hub: How it keeps in touch with the other nodes; None where there is no other.
        stall_s: Seconds without progress of any rank after which that is said; 0 for never.
        stall_stops: Whether the run is stopped then.
        metrics: Files below `cwd` that grow with each step; where there are any, only they count.
        stacks: Whether the ranks are prepared to tell their Python stacks.
        relaunches: How often the run may start once more after this attempt.
        heirs: How many supervisors decide about that once no controller is needed, those that
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
    hide: Tuple[str, ...] = ()
    release: str = ""
    hold_port: int = 0
    grace_s: float = 15.0
    disconnect_s: float = 600.0
    hub: Optional[Hub] = None
    stall_s: float = 0.0
    stall_stops: bool = False
    metrics: Tuple[str, ...] = ()
    stacks: bool = False
    relaunches: int = 0
    heirs: int = 0

    @property
    def stands_by(self) -> bool:
        """Whether there is nothing to start."""
        return not self.argv
