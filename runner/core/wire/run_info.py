"""Run info: what each host keeps and reports of a run, and samples of its load."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Dict, Optional, Tuple

from runner.core.wire.codec import bounded, encode
from runner.core.wire.events import COUNT, TIME
from runner.core.wire.facts import GpuProcess
from runner.core.wire.paths import ATTEMPT, NODE_NAME, RUN_ID
from runner.core.wire.states import Reason, State


@dataclass(frozen=True)
class PastAttempt:
    attempt: int = field(metadata=ATTEMPT)  # the run's n-th start, from 0
    nodes: Tuple[str, ...]  # in rank order
    reason: Reason
    seconds: float = field(default=0.0, metadata=TIME)
    unverified: Tuple[str, ...] = ()  # nodes that did not prove that nothing of it is left


@dataclass(frozen=True)
class RunInfo:
    """The whole run, as every host has it on record in `run.json`."""

    run_id: str = field(metadata=RUN_ID)
    task: str = ""
    launched_by: str = ""  # user@machine
    launched_at: float = field(default=0.0, metadata=TIME)  # since 1970, by the launching machine
    nnodes: int = field(default=1, metadata=COUNT)
    gpus: Optional[Dict[str, int]] = None  # their number on each node that uses any
    attempt: int = field(default=0, metadata=ATTEMPT)  # the run's n-th start, from 0
    min_nodes: int = field(default=0, metadata=COUNT)  # with which it goes on, 0 for all of them
    past_attempts: Tuple[PastAttempt, ...] = ()
    standby_nodes: Tuple[str, ...] = ()  # spares; their hosts have a record of it, too
    relaunches_left: int = field(default=0, metadata=COUNT)  # after this attempt


@dataclass(frozen=True)
class HostRunStatus:
    info: RunInfo
    owner: str  # the user it belongs to on that host
    state: Optional[State]  # None if the record cannot be read
    alive: bool  # whether its supervisor or guardian is
    changed_at: float = field(metadata=TIME)  # the last change of state, in seconds since 1970
    relaunch_pending: bool = False  # whether its controller is about to relaunch it
    node: str = field(default="", metadata=NODE_NAME)  # in the run, whatever it is called now
    lost_node: bool = False  # whether it ended there because a node was lost
    here: bool = True  # False on a host that only shares the disk of another one

    @property
    def is_active(self) -> bool:
        """Whether processes of it may still run there."""
        return self.alive or self.state not in TERMINAL_STATES or self.state is State.STUCK


TERMINAL_STATES = (State.SUCCEEDED, State.FAILED, State.STOPPED, State.STUCK, None)


SAMPLES_VERSION = 1

PERCENT = bounded(0, 100)
WATTS = bounded(0, 1e5)
CELSIUS = bounded(-300, 1e4)


@dataclass(frozen=True)
class GpuSample:
    index: int = field(metadata=COUNT)
    name: str = ""
    utilization: Optional[int] = field(default=None, metadata=PERCENT)  # of time with a kernel
    memory_used: Optional[int] = field(default=None, metadata=COUNT)  # in bytes
    memory_total: Optional[int] = field(default=None, metadata=COUNT)  # in bytes
    power_w: Optional[float] = field(default=None, metadata=WATTS)
    temperature_c: Optional[float] = field(default=None, metadata=CELSIUS)
    throttled: Tuple[str, ...] = ()  # why its clocks are lower: "power", "thermal", "hardware"
    users: Tuple[GpuProcess, ...] = ()
    error: str = ""  # why the driver does not say
    memory_busy: Optional[int] = field(default=None, metadata=PERCENT)  # of time with an access


@dataclass(frozen=True)
class Sample:
    node: str = field(metadata=NODE_NAME)
    attempt: int = field(metadata=ATTEMPT)
    wall: float = field(metadata=TIME)  # since 1970, by the clock of the host
    cores: Optional[int] = field(default=None, metadata=COUNT)
    cpu: Optional[float] = field(default=None, metadata=PERCENT)  # since the one before
    memory_used: Optional[int] = field(default=None, metadata=COUNT)  # in bytes
    memory_total: Optional[int] = field(default=None, metadata=COUNT)  # in bytes
    gpus: Tuple[GpuSample, ...] = ()
    gpu_error: str = ""  # why there are no GPUs in it, where the host has a driver

    def to_line(self) -> str:
        data = {"v": SAMPLES_VERSION, **encode(self)}
        return json.dumps(data, separators=(",", ":"), allow_nan=False) + "\n"
