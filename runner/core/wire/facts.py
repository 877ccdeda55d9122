"""Facts: what a host is asked and reports about itself, and about connections to others."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Dict, Optional, Tuple

from runner.core.wire.codec import bounded, parsed_by
from runner.core.wire.container import Container, ContainerFacts
from runner.core.wire.events import COUNT
from runner.core.wire.paths import USUAL_WORKDIR
from runner.core.wire.timing import SETUP_TIMEOUT_S


def _parse_addresses(text: str) -> None:
    """Raise ValueError unless it is an address or a network, with the length of its prefix."""
    import ipaddress  # noqa: PLC0415 (not needed to report facts)

    ipaddress.ip_interface(text)


ADDRESSES = parsed_by(_parse_addresses)

MANAGED_ENV = (
    "CUDA_VISIBLE_DEVICES",
    "DIST_BACKEND",
    "GLOO_SOCKET_IFNAME",
    "NCCL_SOCKET_IFNAME",
    "OMP_NUM_THREADS",
    "TORCH_CPP_LOG_LEVEL",
    "TP_SOCKET_IFNAME",
)
"""Variables that the plan sets unless the user did."""

MAX_PORT = 65535
PORT = bounded(0, MAX_PORT)
"""Limits of a decoded port; 0 for none."""

CORES = bounded(1, 1 << 20)
"""Limits of a decoded number of cores."""

ASSUMED = "assumed"
"""The `gpu_source` of facts that were assumed, for a plan without contacting hosts."""


PREPARED = "$RUNNER_PREPARED"
"""The folder of the environment that a host prepares, in the path of the task's interpreter."""


@dataclass(frozen=True)
class Prepare:
    """The environment that lines of the user make on a host, once for what they depend on."""

    lines: Tuple[str, ...]
    python: str = "python3"  # what it is made with
    digest: str = ""  # of the files that the lines read


@dataclass(frozen=True)
class FactsRequest:
    """The request for the facts of one host, large on purpose: a field for each thing asked for.

    Paths may begin with `~/`; "" asks for nothing.
    """

    node: str
    run_id: str = ""
    setup: Tuple[str, ...] = ()  # shell lines that bash runs first; the run keeps their environment
    python: str = "python3"  # the task's interpreter: a name on PATH, or a path
    project: str = ""  # the folder of the code; "" for a shipped task
    script: str = ""  # absolute or below `project`
    workdir: str = USUAL_WORKDIR
    tasks_hash: str = ""  # of the shipped tasks
    release: str = ""  # the hash of the release that the run works in
    keep_place: str = ""  # PROJECT/TASK, if the task keeps folders
    reserve_port: bool = False  # for the rendezvous
    spare_ports: int = 0  # and so many for that of later attempts
    reserve_hub_port: bool = False  # for the supervisors' hub
    port_first: int = 0  # the first port allowed; 0 for any
    port_last: int = 0
    skip_launch_facts: bool = False  # leaves out what only a launch needs: interpreter and GPUs
    tool_timeout_s: float = 15.0  # of each external tool
    setup_timeout_s: float = SETUP_TIMEOUT_S
    python_path: str = ""  # the PYTHONPATH of the ranks, if the configuration sets one
    prepare: Optional[Prepare] = None  # `python` may begin with `PREPARED`
    container: Optional[Container] = None  # the interpreter is then that of its image
    pull: str = "never"  # whether its image may be pulled: missing, always
    pull_timeout_s: float = 0.0
    container_start_s: float = 0.0
    gpu_health: bool = False  # which no launch waits for, as for the next two
    modules: Tuple[str, ...] = ()  # that the task's interpreter is to have
    paths: Tuple[str, ...] = ()  # that the program is to read, absolute

    @property
    def container_limit_s(self) -> float:
        """How long an engine may take: it is asked, pulls an image, and starts a container."""
        return self.tool_timeout_s + self.pull_timeout_s + self.container_start_s

    @property
    def tools_limit_s(self) -> float:
        """How long all tools may take together: at once, but for those of a container."""
        return self.tool_timeout_s + (self.container_limit_s if self.container else 0.0)


@dataclass(frozen=True)
class Interface:
    """One network interface; `addresses` like "10.0.0.1/24" or "fe80::1/64".

    `up` means switched on and with a carrier. A labelled address (`eth0:1`) is an interface of its
    own.
    """

    name: str
    addresses: Tuple[str, ...] = field(default=(), metadata=ADDRESSES)
    up: bool = True
    loopback: bool = False


@dataclass(frozen=True)
class Route:
    """One line of the kernel's main routing table; `dest` like "10.0.0.0/24" or "0.0.0.0/0"."""

    dest: str = field(metadata=ADDRESSES)
    interface: str
    metric: int = 0


@dataclass(frozen=True)
class Driver:
    """NVIDIA's driver: its version ("550.54.15"), and the newest CUDA it supports ("12.4")."""

    version: str = ""
    cuda: str = ""


@dataclass(frozen=True)
class GpuHealth:
    volatile: Optional[int] = None  # uncorrected memory errors since the driver was loaded
    repair_pending: Optional[bool] = None  # bad memory is replaced at the next reset (row or page)
    repair_failed: Optional[bool] = None  # bad memory could not be replaced
    error: str = ""  # why the driver cannot use it, though it has a name


@dataclass(frozen=True)
class GpuProcess:
    """A process that computes on a GPU; in a PID namespace of our own only its pid is known."""

    pid: int
    memory: int = field(default=0, metadata=COUNT)  # of the GPU, in bytes; 0 if unknown
    user: str = ""
    command: str = ""
    run_id: str = ""  # the run of ours that it belongs to


@dataclass(frozen=True)
class Gpu:
    """One GPU; a broken one has only its index and the driver's `error`."""

    index: int
    name: str = ""
    uuid: str = ""
    processes: Tuple[GpuProcess, ...] = ()
    error: str = ""
    health: Optional[GpuHealth] = None


@dataclass(frozen=True)
class Interpreter:
    """The task's interpreter; with an `error` the rest is empty."""

    executable: str = ""
    version: str = ""  # such as "3.11.7"
    torch: str = ""  # as in torch's version file ("2.13.0+cpu"), "" without torch
    torch_cuda: str = ""  # the CUDA runtime it is built for ("12.8"), "" for none
    error: str = ""
    python_path: str = ""  # the PYTHONPATH that it has without ours
    missing: Tuple[str, ...] = ()  # of the modules that were asked for


@dataclass(frozen=True)
class SetupResult:
    """The exit code of the setup lines (-1: timed out) and the end of their output.

    After a failure, the end of `output` is ours: it names the line that failed.
    """

    exit_code: int = 0
    output: str = ""


@dataclass(frozen=True)
class Facts:
    """One host as it reports itself, large on purpose: a field for each fact.

    What was not requested, or is not there, is empty; ports that were not reserved are 0.
    """

    node: str
    hostname: str = ""
    user: str = ""  # of the agent
    home: str = ""
    uid: int = 0
    gid: int = 0
    groups: Tuple[int, ...] = ()  # the other groups
    host_python: str = ""  # the interpreter of the agent, absolute; "" if unknown
    setup: SetupResult = SetupResult()  # after a failure the rest is empty
    python: Interpreter = Interpreter()
    environment: str = ""  # the folder of the one that is prepared for the task, "" for none
    awaits_environment: bool = False  # whether that is still to be made, perhaps with `python`
    container: ContainerFacts = field(default_factory=ContainerFacts)
    gpus: Tuple[Gpu, ...] = ()  # by index
    gpu_source: str = "none"  # "nvml", "none", or why NVML did not answer
    driver: Driver = field(default_factory=Driver)
    interfaces: Tuple[Interface, ...] = ()
    routes: Tuple[Route, ...] = ()
    ssh_address: str = ""  # its own address of our connection (SSH_CONNECTION), "" if local
    cores: int = field(default=1, metadata=CORES)  # ours to use, by affinity and cgroup
    reserved_port: int = field(default=0, metadata=PORT)  # for the rendezvous
    spare_ports: Tuple[int, ...] = field(default=(), metadata=PORT)  # for that of later attempts
    hub_port: int = field(default=0, metadata=PORT)  # for the supervisors' hub
    port_error: str = ""  # why no port could be reserved
    workdir: str = ""  # absolute
    workdir_error: str = ""  # why no file can be written below it, or not safely
    workdir_exposed: str = ""  # what other users can change: "above" it, or "inside"
    disk_free: Optional[int] = None  # bytes, there
    project: str = ""  # absolute
    project_exists: bool = True
    script_exists: bool = True
    missing_paths: Tuple[str, ...] = ()  # of those that were asked for
    run_exists: bool = False  # whether this run has a folder here already
    run_stopped: bool = False  # whether a stop of this run was requested here
    has_tasks: bool = False  # whether the shipped tasks with the requested hash are here
    has_release: bool = False  # whether the release is here
    kept_by: str = ""  # the run that has the folders which the task keeps, if it is another
    shm_free: Optional[int] = None  # bytes, in /dev/shm
    logind_kill_setting: str = ""  # by which logind kills processes at logout
    preset_env: Dict[str, str] = field(default_factory=dict)  # `MANAGED_ENV` set by setup or host
    limits: Dict[str, int] = field(default_factory=dict)  # soft ones, as "nofile"; -1: unlimited
    infiniband: Tuple[str, ...] = ()  # InfiniBand (or RoCE) devices


class Outcome(enum.Enum):
    REACHED = "reached"
    REFUSED = "refused"
    TIMED_OUT = "timed out"
    RESET = "reset"
    WRONG_PEER = "stranger"  # what answered does not have the token, or is another node
    NO_GREETING = "mute"  # the connection was accepted, but nothing was sent
    STALLED = "stalled"  # small packets passed, large ones did not
    FAILED = "failed"


@dataclass(frozen=True)
class Target:
    node: str
    address: str
    port: int


@dataclass(frozen=True)
class ProbeResult:
    """One connection to a target; `rtt_s` is the round-trip time in seconds, 0 if unknown."""

    target: Target
    outcome: Outcome
    rtt_s: float = 0.0
    detail: str = ""
