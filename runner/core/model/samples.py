"""Samples: the load of a host and of its GPUs at one moment; None or "" is unknown.

A supervisor takes one every few seconds while a run is on, and appends it to `samples.jsonl`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Optional, Tuple

from runner.core.codec import bounded, decode, encode, parse_json
from runner.core.protocol.events import COUNT, TIME
from runner.core.protocol.paths import ATTEMPT, NODE_NAME

SAMPLES_VERSION = 1

PERCENT = bounded(0, 100)
WATTS = bounded(0, 1e5)
CELSIUS = bounded(-300, 1e4)


@dataclass(frozen=True)
class GpuUser:
    """A process that computes on a GPU."""

    pid: int
    user: str = ""
    command: str = ""
    memory: int = field(default=0, metadata=COUNT)  # of the GPU, in bytes; 0 if unknown
    run_id: str = ""  # the run of ours that it belongs to


@dataclass(frozen=True)
class GpuSample:
    """The load of one GPU."""

    index: int = field(metadata=COUNT)
    name: str = ""
    utilization: Optional[int] = field(default=None, metadata=PERCENT)  # of time with a kernel
    memory_used: Optional[int] = field(default=None, metadata=COUNT)  # in bytes
    memory_total: Optional[int] = field(default=None, metadata=COUNT)  # in bytes
    power_w: Optional[float] = field(default=None, metadata=WATTS)
    temperature_c: Optional[float] = field(default=None, metadata=CELSIUS)
    throttled: Tuple[str, ...] = ()  # why its clocks are lower: "power", "thermal", "hardware"
    users: Tuple[GpuUser, ...] = ()
    error: str = ""  # why the driver does not say


@dataclass(frozen=True)
class Sample:
    """The load of one host."""

    node: str = field(metadata=NODE_NAME)
    attempt: int = field(metadata=ATTEMPT)
    wall: float = field(metadata=TIME)  # since 1970, by the clock of the host
    cores: Optional[int] = field(default=None, metadata=COUNT)
    cpu: Optional[float] = field(
        default=None, metadata=PERCENT
    )  # of all cores, since the one before
    memory_used: Optional[int] = field(default=None, metadata=COUNT)  # in bytes
    memory_total: Optional[int] = field(default=None, metadata=COUNT)  # in bytes
    gpus: Tuple[GpuSample, ...] = ()
    gpu_error: str = ""  # why there are no GPUs in it, where the host has a driver

    def to_line(self) -> str:
        data = {"v": SAMPLES_VERSION, **encode(self)}
        return json.dumps(data, separators=(",", ":"), allow_nan=False) + "\n"


def parse_sample(line: bytes) -> Sample:
    """Return the sample on a line; raise ValueError if it is torn or another version."""
    data = parse_json(line)
    if not isinstance(data, dict) or data.get("v") != SAMPLES_VERSION:
        raise ValueError(f"no sample of version {SAMPLES_VERSION}")
    return decode(Sample, data)
