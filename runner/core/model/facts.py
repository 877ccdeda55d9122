"""What a host reported about itself, all in one answer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Dict, Optional, Tuple

from runner.core.model.hardware import Driver, GpuHealth, System, TopProcess, Xid
from runner.core.planning.etcd import EtcdFacts

MANAGED_ENV = (
    "CUDA_VISIBLE_DEVICES",
    "DIST_BACKEND",
    "GLOO_SOCKET_IFNAME",
    "NCCL_SOCKET_IFNAME",
    "OMP_NUM_THREADS",
    "TP_SOCKET_IFNAME",
)
"""Variables the plan sets, but never over a setting of the user's."""

ASSUMED = "assumed"
"""The `gpu_source` of a host that was not asked."""


@dataclass(frozen=True)
class FactsRequest:
    """What the controller wants to know of one host.

    Attributes:
        node: The node's name in the YAML.
        run_id: The run that asks.
        setup: Shell lines to run by bash first; their environment is kept for the run.
        python: The task's interpreter: a name on PATH, or a path (`~/` allowed).
        project: The folder of the code (`~/` allowed); "" when the task is ours.
        script: A script below `project`, or an absolute one; "" when there is none.
        workdir: Where runs are kept (`~/` allowed).
        tasks_hash: The content hash of our shipped tasks; "" when the task is a user's.
        release: The hash of the release the run is to work in; "" for none.
        reserve_port: Whether to reserve the port where the nodes meet here.
        reserve_hub_port: Whether to reserve a port for the supervisors' hub.
        reserve_vote_port: Whether to reserve a port by which the hosts relaunch the run themselves.
        port_first: The first port allowed; 0 for any.
        port_last: The last port allowed.
        tool_timeout_s: How long one slow tool may take before it is left out.
        skip_launch_facts: Whether to leave out what only a launch needs: interpreter and GPUs.
        gpus: Whether to look at the GPUs all the same.
        setup_timeout_s: How long the setup lines may take.
        python_path: The PYTHONPATH the ranks will have, if the configuration sets one.
        packages: Distributions to look for in the task's interpreter, by normalised name.
        find_etcd: Whether to look for an etcd of the host's own.
        etcd_endpoint: HOST:PORT of an etcd to try, "" for none.
        thorough: Whether to do what no launch waits for: look at the health of the GPUs and at who
            uses the machine, ask the login shell for the interpreter, read all of the release.
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

    `up` is switched on and with a carrier. A labelled address (`eth0:1`) is one of its own.
    `mtu` is in bytes, 0 when unknown.
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
    """A process that holds memory of a GPU. Memory in bytes, 0 when unknown."""

    pid: int
    memory: int = 0
    user: str = ""
    command: str = ""


@dataclass(frozen=True)
class Gpu:
    """One GPU. Memory in bytes, 0 when unknown.

    A broken GPU has nothing but its index, and in `error` the driver's words. `health` is only
    known where it was asked for.
    """

    index: int
    name: str = ""
    uuid: str = ""
    memory_total: int = 0
    memory_used: int = 0
    processes: Tuple[GpuProcess, ...] = ()
    error: str = ""
    health: Optional[GpuHealth] = None


@dataclass(frozen=True)
class Interpreter:
    """The task's interpreter. `error` says why it could not be asked; then the rest is empty.

    Attributes:
        executable: Its path.
        version: Such as "3.11.7".
        torch: The version string of torch's version file ("2.13.0+cpu"), "" without torch.
        torch_cuda: The CUDA runtime it is built for ("12.8"), "" for none.
        error: Why it could not be asked.
        prefix: Where its environment is (`sys.prefix`, links resolved): two interpreters with
            the same one import the same packages.
        implementation: As in `sys.implementation.name`.
        packages: Versions of those distributions that were asked for and are there; None when
            they could not be listed.
        substitutes: What may stand for those that are not: another distribution, or a module.
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
    """How the setup lines ended: exit code (-1: out of time) and the end of their output.

    After a failure, the last line of `output` is ours and says which line it was.
    """

    exit_code: int = 0
    output: str = ""


@dataclass(frozen=True)
class Facts:
    """One host, as it sees itself.

    Attributes:
        node: The node's name in the YAML, as asked.
        hostname: Its own name.
        user: The user we are there.
        home: That user's home.
        setup: How the setup lines ended; with a code other than 0 the rest is not filled.
        python: The task's interpreter.
        gpus: Its GPUs, by index.
        gpu_source: "nvml", "none", or why NVML did not answer.
        driver: That of the GPUs.
        xids: What it told the kernel's log since the boot, if that was asked for and may be read.
        interfaces: Every interface with its addresses.
        routes: The routing table.
        ssh_address: The address of its own by which we came (SSH_CONNECTION), "" when local.
        cores: CPU cores a process of ours may use (affinity and cgroup quota).
        reserved_port: The port reserved for the meeting, 0 when none was asked for or free.
        hub_port: The one reserved for the supervisors' hub, likewise.
        vote_port: The one reserved for a relaunch by the hosts, likewise.
        port_error: Why no port could be reserved.
        workdir: Absolute.
        workdir_error: Why no file can be written below it.
        disk_free: Bytes free there.
        project: Absolute.
        project_exists: Whether that folder is there.
        script_exists: Whether the script is there.
        run_exists: Whether a run of this id has been here before.
        run_stopped: Whether somebody told it here to stop.
        has_tasks: Whether the shipped tasks of that hash are there.
        has_release: Whether the release is there, whole.
        release_state: "absent", "intact" or "damaged", after all of it was read; "" when it was
            not.
        login_python: What the login shell finds by the same name, if it was asked and did.
        machine: The kind of processor, as in `uname -m`.
        shm_free: Bytes free in /dev/shm.
        logind_kill_setting: The setting by which logind kills at logout what a run leaves, "" for
            none.
        preset_env: What `setup` or the host itself sets of the variables in `MANAGED_ENV`.
        limits: Soft resource limits by name ("nofile", "memlock", "nproc"); -1 is unlimited.
        system: The machine's memory, load and NUMA nodes.
        top_process: Who keeps its cores busy, if that was asked for and somebody does.
        etcd: What it knows of etcd, if that was asked for.
        part_seconds: How long each part of the answer took.
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
