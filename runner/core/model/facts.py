"""Facts: what a host reports about itself, all in one answer, and the request for it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Dict, Optional, Tuple

from runner.core.model.etcd import EtcdFacts
from runner.core.model.hardware import Driver, GpuHealth, System, TopProcess, Xid

MANAGED_ENV = (
    "CUDA_VISIBLE_DEVICES",
    "DIST_BACKEND",
    "GLOO_SOCKET_IFNAME",
    "NCCL_SOCKET_IFNAME",
    "OMP_NUM_THREADS",
    "TP_SOCKET_IFNAME",
)
"""Variables that the plan sets unless the user did."""

ASSUMED = "assumed"
"""The `gpu_source` of facts that were assumed, for a plan without contacting hosts."""


@dataclass(frozen=True)
class FactsRequest:
    """The request for the facts of one host, large on purpose: a field for each thing asked for.

    Attributes:
        node: The node's name in the YAML.
        run_id: The run that asks.
        setup: Shell lines that bash runs first; their environment is kept for the run.
        python: The task's interpreter: a name on PATH, or a path (`~/` allowed).
        project: The folder of the code (`~/` allowed); "" for a shipped task.
        script: A script, absolute or below `project`; "" for none.
        workdir: The folder of runs (`~/` allowed).
        tasks_hash: The content hash of the shipped tasks; "" for a task of the user's.
        release: The hash of the release that the run works in; "" for none.
        reserve_port: Whether to reserve a port for the rendezvous.
        reserve_hub_port: Whether to reserve a port for the supervisors' hub.
        reserve_vote_port: Whether to reserve a port for a relaunch by the hosts themselves.
        port_first: The first port allowed; 0 for any.
        port_last: The last port allowed.
        tool_timeout_s: The time limit of each external tool.
        skip_launch_facts: Whether to leave out what only a launch needs: interpreter and GPUs.
        gpus: Whether to query the GPUs even then.
        setup_timeout_s: The time limit of the setup lines.
        python_path: The PYTHONPATH of the ranks, if the configuration sets one.
        packages: Distributions to look for in the task's interpreter, by normalised name.
        find_etcd: Whether to look for an etcd program.
        etcd_endpoint: HOST:PORT of an etcd to try, "" for none.
        thorough: Whether to do what no launch waits for: query the health of the GPUs and the load
            of the machine, ask the login shell for the interpreter, read the whole release.
    """

    node: str
    run_id: str = ""
    setup: Tuple[str, ...] = ()
    python: str = "python3"
    project: str = ""
    script: str = ""
    workdir: str = "~/.runner"
    tasks_hash: str = ""
    release: str = ""
    reserve_port: bool = False
    reserve_hub_port: bool = False
    reserve_vote_port: bool = False
    port_first: int = 0
    port_last: int = 0
    skip_launch_facts: bool = False
    gpus: bool = False
    tool_timeout_s: float = 15.0
    setup_timeout_s: float = 120.0
    python_path: str = ""
    packages: Tuple[str, ...] = ()
    find_etcd: bool = False
    etcd_endpoint: str = ""
    thorough: bool = False


@dataclass(frozen=True)
class Interface:
    """One network interface; `addresses` like "10.0.0.1/24" or "fe80::1/64".

    `up` means switched on and with a carrier. A labelled address (`eth0:1`) is an interface of its
    own. `mtu` is in bytes, 0 if unknown.
    """

    name: str
    addresses: Tuple[str, ...] = ()
    up: bool = True
    loopback: bool = False
    mtu: int = 0


@dataclass(frozen=True)
class Route:
    """One line of the kernel's main routing table; `dest` like "10.0.0.0/24" or "0.0.0.0/0"."""

    dest: str
    interface: str
    metric: int = 0


@dataclass(frozen=True)
class GpuProcess:
    """A process that uses a GPU; `memory` is in bytes, 0 if unknown."""

    pid: int
    memory: int = 0
    user: str = ""
    command: str = ""


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
    """The task's interpreter; with an `error` the rest is empty.

    Attributes:
        executable: Its path.
        version: Its version, such as "3.11.7".
        torch: The version string of torch's version file ("2.13.0+cpu"), "" without torch.
        torch_cuda: The CUDA runtime it is built for ("12.8"), "" for none.
        error: Why it could not be queried.
        prefix: Its `sys.prefix`, links resolved: interpreters that share it share their packages.
        implementation: Its `sys.implementation.name`.
        packages: Versions of the requested distributions that it has; None if unknown.
        substitutes: Distributions or modules that may stand for the missing ones.
    """

    executable: str = ""
    version: str = ""
    torch: str = ""
    torch_cuda: str = ""
    error: str = ""
    prefix: str = ""
    implementation: str = "cpython"
    packages: Optional[Dict[str, str]] = None
    substitutes: Dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class SetupResult:
    """The exit code of the setup lines (-1: timed out) and the end of their output.

    After a failure, the last line of `output` is ours and names the line that failed.
    """

    exit_code: int = 0
    output: str = ""


@dataclass(frozen=True)
class Facts:
    """One host as it reports itself, large on purpose: a field for each fact.

    Attributes:
        node: The node's name in the YAML.
        hostname: Its own name.
        user: The user of the agent.
        home: That user's home.
        setup: The result of the setup lines; after a failure the rest is empty.
        python: The task's interpreter.
        gpus: Its GPUs, by index.
        gpu_source: "nvml", "none", or why NVML did not answer.
        driver: The NVIDIA driver.
        xids: Its errors in the kernel's log since the boot, if requested and readable.
        interfaces: Every interface with its addresses.
        routes: The routing table.
        ssh_address: Its own address of our connection (SSH_CONNECTION), "" if local.
        cores: CPU cores that a process of ours may use (affinity and cgroup quota).
        reserved_port: The port reserved for the rendezvous, 0 for none.
        hub_port: The port reserved for the supervisors' hub, 0 for none.
        vote_port: The port reserved for a relaunch by the hosts, 0 for none.
        port_error: Why no port could be reserved.
        workdir: The folder of runs, absolute.
        workdir_error: Why no file can be written below it.
        disk_free: Bytes free there.
        project: The folder of the code, absolute.
        project_exists: Whether that folder exists.
        script_exists: Whether the script exists.
        run_exists: Whether this run has a folder here already.
        run_stopped: Whether a stop of this run was requested here.
        has_tasks: Whether the shipped tasks of the requested hash are here.
        has_release: Whether the release is here and complete.
        release_state: "absent", "intact" or "damaged" if all of it was read, else "".
        login_python: The interpreter that the login shell finds, if requested and found.
        machine: The kind of processor, as `uname -m` prints it.
        shm_free: Bytes free in /dev/shm.
        logind_kill_setting: The setting by which logind kills processes at logout, "" for none.
        preset_env: Variables of `MANAGED_ENV` that `setup` or the host sets.
        limits: Soft resource limits by name ("nofile", "memlock", "nproc"); -1 is unlimited.
        system: The machine's memory, load and NUMA nodes.
        top_process: The process that uses most cores, if requested.
        etcd: Its etcd program and the run's endpoint, if requested.
        part_seconds: How long each part of the answer took; for people who debug a slow host.
    """

    node: str
    hostname: str = ""
    user: str = ""
    home: str = ""
    setup: SetupResult = SetupResult()
    python: Interpreter = Interpreter()
    gpus: Tuple[Gpu, ...] = ()
    gpu_source: str = "none"
    driver: Driver = field(default_factory=Driver)
    xids: Tuple[Xid, ...] = ()
    interfaces: Tuple[Interface, ...] = ()
    routes: Tuple[Route, ...] = ()
    ssh_address: str = ""
    cores: int = 1
    reserved_port: int = 0
    hub_port: int = 0
    vote_port: int = 0
    port_error: str = ""
    workdir: str = ""
    workdir_error: str = ""
    disk_free: Optional[int] = None
    project: str = ""
    project_exists: bool = True
    script_exists: bool = True
    run_exists: bool = False
    run_stopped: bool = False
    has_tasks: bool = False
    has_release: bool = False
    release_state: str = ""
    login_python: Interpreter = Interpreter()
    machine: str = ""
    shm_free: Optional[int] = None
    logind_kill_setting: str = ""
    preset_env: Dict[str, str] = field(default_factory=dict)
    limits: Dict[str, int] = field(default_factory=dict)
    system: System = field(default_factory=System)
    top_process: Optional[TopProcess] = None
    etcd: EtcdFacts = field(default_factory=EtcdFacts)
    part_seconds: Dict[str, float] = field(default_factory=dict)
