"""From what was asked and what the hosts are to what each host will be told: a pure function."""

from __future__ import annotations

import posixpath
from dataclasses import dataclass
from typing import Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

from runner.core import network, torchrun
from runner.core.environment import environment, flight_recorder
from runner.core.errors import NotReady, Problem
from runner.core.facts import Facts
from runner.core.layout import RunFolder, tasks_folder
from runner.core.order import Hub, Order
from runner.core.readiness import problems_of, visible_gpus
from runner.core.release import Code
from runner.core.rendezvous import NO_SHARED_STORE, Place, flags
from runner.core.spec import Node, Spec

PLUMBING = ("PYTHON_EXEC", "PET_LOG_DIR", "PET_SHUTDOWN_TIMEOUT")
"""Environment for torchrun that no rank shall see and no person needs to paste."""

TORCHRUN_LATER_S = 10
"""torchrun would kill the rank shims with their ranks: its own ladder ends after ours, so that
they can write down how their ranks ended."""

NO_CODE = Code()

ASSUMED = "assumed"
"""The `gpu_source` of a host that was not asked."""

NAMED = 3
"""So many nodes a note names one by one."""


@dataclass(frozen=True)
class NodePlan:
    """One node's share of the plan.

    Attributes:
        node: Its name in the YAML.
        host: How it is logged in to.
        command: The plain command, as a person would type it there.
        env: The environment of that command; what differs from the host's own.
        cwd: Its working directory.
        ranks: The global ranks on this node, by local rank.
        gpus: The devices used, () for none.
        interface: The interface of the training traffic, "" when unknown.
        order: What its supervisor is told.
    """

    node: str
    host: str
    command: Tuple[str, ...]
    env: Dict[str, str]
    cwd: str
    ranks: Tuple[int, ...]
    gpus: Tuple[int, ...]
    interface: str
    order: Order


@dataclass(frozen=True)
class Plan:
    """What every host will be told, and what was decided on the way.

    `meeting` is why the ranks meet at `master_addr`; `setup` runs on every node first; `secrets`
    are names, never values; `release` and `commit` say which code runs, "" where it is the hosts'
    own, `sub` and `script` where in it (see `Code`), and `tasks_hash` which shipped tasks;
    `outputs` is what the task leaves to be fetched; `notes` are decisions worth saying aloud.
    """

    run_id: str
    cluster: str
    task: str
    attempt: int
    nodes: Tuple[NodePlan, ...]
    world_size: int
    backend: str
    master_addr: str
    master_port: int
    meeting: str = ""
    setup: Tuple[str, ...] = ()
    secrets: Tuple[str, ...] = ()
    release: str = ""
    commit: str = ""
    sub: str = ""
    script: str = ""
    tasks_hash: str = ""
    outputs: Tuple[str, ...] = ()
    notes: Tuple[str, ...] = ()

    @property
    def node_of_rank(self) -> Dict[int, str]:
        """The node of each rank."""
        return {rank: share.node for share in self.nodes for rank in share.ranks}

    def of(self, node: str) -> NodePlan:
        """Return one node's share."""
        return next(share for share in self.nodes if share.node == node)


def build_plan(
    spec: Spec, facts: Mapping[str, Facts], *, code: Code = NO_CODE, attempt: int = 0
) -> Plan:
    """Decide everything about a run.

    Args:
        spec: What was asked.
        facts: One answer per node of `spec`.
        code: What travels with the run.
        attempt: The run's n-th start, from 0.

    Raises:
        NotReady: With every problem of every host.
    """
    problems: List[Problem] = []
    for node in spec.nodes:
        problems += problems_of(spec, node, facts[node.name])
    if problems:
        raise NotReady(problems)
    addr, why, problem = network.training_address(spec.nodes, facts)
    if problem:
        raise NotReady([problem])

    gpus = {node.name: chosen_gpus(node, facts[node.name]) for node in spec.nodes}
    nproc = {node.name: node.nproc or len(gpus[node.name]) or 1 for node in spec.nodes}
    deaf = [name for name in gpus if gpus[name] and not facts[name].python.torch_cuda]
    backend, problem = _backend(spec, gpus, nproc, deaf)
    if problem:
        raise NotReady([problem])
    ranks = _ranks(spec.nodes, nproc)
    port = facts[spec.master.name].held_port
    route = network.derived_address(spec.nodes, facts) if addr == spec.master.addr else addr
    numeric = addr if network.is_numeric(addr) else route
    hub = _hub(spec, numeric or addr, facts[spec.master.name].hub_port)
    locals_ = _local_addrs(spec, facts)
    meeting = _Meeting(addr, route, port, len(spec.nodes), backend, code, attempt, hub, locals_)
    return Plan(
        run_id=spec.run_id,
        cluster=spec.cluster,
        task=spec.task.name,
        attempt=attempt,
        nodes=tuple(
            _node_plan(spec, index, facts[node.name], meeting, ranks[node.name], gpus[node.name])
            for index, node in enumerate(spec.nodes)
        ),
        world_size=sum(nproc.values()),
        backend=backend,
        master_addr=addr,
        master_port=port,
        meeting=why,
        setup=spec.setup,
        secrets=tuple(spec.secrets),
        release=code.release,
        commit=code.commit,
        sub=code.sub,
        script=code.script,
        tasks_hash=code.tasks_hash,
        outputs=spec.task.outputs,
        notes=_notes(spec, facts, gpus, deaf) + _unpushed(spec, facts, code),
    )


def chosen_gpus(node: Node, facts: Facts) -> Tuple[int, ...]:
    """Return the indices of the GPUs this node will use."""
    if node.gpu_ids:
        return node.gpu_ids
    there = visible_gpus(facts)
    return there if node.gpu_count is None else there[: node.gpu_count]


@dataclass(frozen=True)
class _Meeting:
    """What all nodes of one attempt agree on."""

    addr: str
    route: str
    port: int
    nnodes: int
    backend: str
    code: Code
    attempt: int
    hub: Optional[Hub]
    local_addrs: Mapping[str, str]


def _local_addrs(spec: Spec, facts: Mapping[str, Facts]) -> Dict[str, str]:
    """Return where each node's ranks are reached; torch would publish a name nobody may resolve."""
    if len(spec.nodes) == 1:
        return {spec.master.name: network.LOOPBACK}
    found = network.endpoints(spec, spec.nodes, facts)
    return {node.name: node.addr or found[node.name].address for node in spec.nodes}


def _hub(spec: Spec, addr: str, port: int) -> Optional[Hub]:
    if len(spec.nodes) == 1 or not port:
        return None
    return Hub(spec.master.name, addr, port, len(spec.nodes) - 1, spec.lost_s)


def _ranks(nodes: Sequence[Node], nproc: Mapping[str, int]) -> Dict[str, Tuple[int, ...]]:
    ranks, base = {}, 0
    for node in nodes:
        ranks[node.name] = tuple(range(base, base + nproc[node.name]))
        base += nproc[node.name]
    return ranks


def _backend(
    spec: Spec,
    gpus: Mapping[str, Tuple[int, ...]],
    nproc: Mapping[str, int],
    deaf: Sequence[str],
) -> Tuple[str, Optional[Problem]]:
    """Choose the backend; `deaf` are nodes with GPUs whose torch was built without CUDA."""
    if deaf and spec.backend == "nccl":
        return "", Problem(
            where="cluster.backend",
            what=f"nccl needs a torch built for CUDA, and that of {deaf[0]} is not",
            hint=f"install one there (see {spec.python} -m pip install torch), or set "
            "cluster.backend=gloo",
        )
    short = [name for name, chosen in gpus.items() if len(chosen) < nproc[name]]
    if spec.backend == "auto":
        return ("gloo" if short or deaf else "nccl"), None
    if spec.backend == "nccl" and short:
        return "", Problem(
            where="cluster.backend",
            what=f"nccl needs a GPU per rank, and {short[0]} has {len(gpus[short[0]])} "
            f"for {nproc[short[0]]} rank{'' if nproc[short[0]] == 1 else 's'}",
            hint="set cluster.backend=gloo"
            + (
                f", or fewer ranks with cluster.nodes.{short[0]}.nproc_per_node"
                if gpus[short[0]]
                else ""
            ),
        )
    return spec.backend, None


def _notes(
    spec: Spec,
    facts: Mapping[str, Facts],
    gpus: Mapping[str, Tuple[int, ...]],
    deaf: Sequence[str],
) -> Tuple[str, ...]:
    single = [node.name for node in spec.nodes if not gpus[node.name] and node.nproc is None]
    notes = []
    if single:
        each = "1 rank" if len(single) == 1 else "1 rank each"
        more = "cluster.nproc_per_node sets more"
        if facts[single[0]].gpu_source == ASSUMED:
            notes.append(f"the GPUs of {_some(single)} are found at launch: {each} is shown here")
        else:
            notes.append(f"no GPU on {_some(single)}: {each} on the CPU ({more})")
    if deaf:
        notes.append(f"GPUs, but a torch built without CUDA, on {_some(deaf)}: gloo is used")
    return (*notes, *_logind(spec, facts))


def _logind(spec: Spec, facts: Mapping[str, Facts]) -> Iterator[str]:
    """Name the hosts where a run dies with the connection that started it."""
    ways: Dict[Tuple[str, str], List[str]] = {}
    for node in spec.nodes:
        found = facts[node.name]
        if found.logind_kills:
            ways.setdefault((found.logind_kills, found.user), []).append(node.name)
    for (setting, user), names in ways.items():
        there = "there" if len(names) == 1 else "on them"
        yield (
            f"logind on {_some(names)} kills what you leave running when you log out ({setting}): "
            f"a run that outlives its connection would die {there}; an administrator can set "
            f"KillUserProcesses=no, or KillExcludeUsers={user}"
        )


def _unpushed(spec: Spec, facts: Mapping[str, Facts], code: Code) -> Tuple[str, ...]:
    names = [node.name for node in spec.nodes]
    lacking = [name for name in names if code.release and not facts[name].release_held]
    if not lacking:
        return ()
    return (f"release {code.release} is not on {_some(lacking)} yet: a launch pushes it first",)


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more


def _node_plan(
    spec: Spec,
    index: int,
    facts: Facts,
    meeting: _Meeting,
    ranks: Tuple[int, ...],
    gpus: Tuple[int, ...],
) -> NodePlan:
    node = spec.nodes[index]
    folder = RunFolder(facts.workdir, spec.run_id, node.name)
    script = _script(spec, facts, meeting.code)
    interface = _interface(node, facts, meeting)
    place = Place(
        index=index,
        nproc=len(ranks),
        addr=meeting.addr,
        port=meeting.port,
        local_addr=meeting.local_addrs.get(node.name, ""),
        endpoint=spec.rendezvous.endpoint,
    )
    start = torchrun.launcher(facts.python.executable, flags(spec, meeting.attempt, place))
    env = environment(
        *(spec, node, facts, meeting.backend, interface, ranks, gpus), attempt=meeting.attempt
    )
    if spec.elastic:
        env = {**NO_SHARED_STORE, **env}
    env = {**flight_recorder(env, folder.flights(meeting.attempt)), **env}
    cwd = _cwd(spec, folder, facts, meeting.code)
    plumbing = {
        "PET_LOG_DIR": posixpath.join(folder.attempt(meeting.attempt), "torchrun"),
        "PET_SHUTDOWN_TIMEOUT": str(
            spec.torchrun.shutdown_timeout or round(spec.grace_s) + TORCHRUN_LATER_S
        ),
    }
    is_command = spec.task.kind == "command"
    if not is_command:
        plumbing["PYTHON_EXEC"] = folder.shim
    return NodePlan(
        node=node.name,
        host=node.host,
        command=start + torchrun.program(spec.task, script),
        env=env,
        cwd=cwd,
        ranks=ranks,
        gpus=gpus,
        interface=interface,
        order=Order(
            run_id=spec.run_id,
            node=node.name,
            attempt=meeting.attempt,
            workdir=facts.workdir,
            argv=start + torchrun.program(spec.task, script, folder.shim),
            env={**env, **plumbing},
            cwd=cwd,
            ranks=ranks,
            shim=folder.shim,
            shim_python=spec.host_python,
            rank_prefix=() if is_command else (facts.python.executable,),
            hide=PLUMBING,
            release=meeting.code.release,
            hold_port=meeting.port if index == 0 and spec.rendezvous.held else 0,
            grace_s=spec.grace_s,
            disconnect_s=spec.disconnect_s,
            hub=meeting.hub,
            stall_s=spec.stall_s,
            stall_stops=spec.stall_stops,
            metrics=spec.metrics,
            stacks=spec.stacks,
        ),
    )


def _cwd(spec: Spec, folder: RunFolder, facts: Facts, code: Code) -> str:
    if spec.task.shipped:
        return folder.work
    if not code.release:
        return facts.project
    return posixpath.join(folder.work, code.sub) if code.sub else folder.work


def _script(spec: Spec, facts: Facts, code: Code) -> str:
    if spec.task.shipped:
        return posixpath.join(tasks_folder(facts.workdir, code.tasks_hash), spec.task.shipped)
    return (code.script or spec.task.target) if spec.task.kind == "script" else ""


def _interface(node: Node, facts: Facts, meeting: _Meeting) -> str:
    if meeting.nnodes == 1 and not node.interface:
        return next((i.name for i in facts.interfaces if i.loopback), "lo")
    return network.interface_of(node, facts, meeting.route)
