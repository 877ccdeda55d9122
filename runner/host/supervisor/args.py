"""Arguments of a supervisor: all it needs for one attempt of a run on its host."""

from __future__ import annotations

from typing import Dict, NamedTuple, Optional

from runner.core.model.order import Order
from runner.core.protocol.paths import RunPaths
from runner.host.facts import ports
from runner.host.peers.election import ElectionContext


class SupervisorArgs(NamedTuple):
    """What a supervisor begins with.

    Attributes:
        folder: The run's folder on this host.
        order: What to carry out.
        environ: The environment below that of the order.
        reserved_ports: The ports that are reserved for the run here.
        token: The secret that the supervisors of the run share.
        election_context: What the hosts need to relaunch the run by themselves; None where they
            must not.
    """

    folder: RunPaths
    order: Order
    environ: Dict[str, str]
    reserved_ports: ports.ReservedPorts
    token: bytes
    election_context: Optional[ElectionContext] = None
