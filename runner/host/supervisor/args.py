"""Arguments of a supervisor: all it needs for one attempt of a run on its host."""

from __future__ import annotations

from typing import Dict, NamedTuple, Optional

from runner.core.model.plan import Order
from runner.core.protocol.paths import RunPaths
from runner.host.facts import ports
from runner.host.peers.election import ElectionContext


class SupervisorArgs(NamedTuple):
    """What a supervisor begins with."""

    folder: RunPaths
    order: Order
    environ: Dict[str, str]  # that of the order is added to it
    reserved_ports: ports.ReservedPorts
    token: bytes  # the secret that the supervisors of the run share
    election_context: Optional[ElectionContext] = None  # None: the hosts must not relaunch it
