"""From what was asked and what the hosts are to what each host will be told: a pure function."""

from __future__ import annotations

import posixpath
from dataclasses import dataclass, replace
from typing import Dict, List, Mapping, Optional, Sequence, Tuple

from runner.core.errors import NotReady, Problem
from runner.core.model.facts import Facts
from runner.core.model.order import Order
from runner.core.model.release import Code
from runner.core.model.spec import Node, Spec
from runner.core.planning import addresses
from runner.core.planning.endpoints import Meeting, alone, meet
from runner.core.planning.environment import environment, flight_recorder
from runner.core.planning.launch_command import PLUMBING, Entry, entry
from runner.core.planning.notes import notes
from runner.core.planning.readiness import problems_of, visible_gpus
from runner.core.planning.rendezvous_flags import NO_SHARED_STORE, Place
from runner.core.protocol.paths import RunFolder, tasks_folder

NO_CODE = Code()


@dataclass(frozen=True)
class NodePlan:
    """One node's share of the plan.

    Attributes:
        node: Its name in the YAML.
        host: How it is logged in to.
        command: The plain command, as a person would type it there.
        env: The environment of that command; what differs from the host's own.
        cwd: Its working directory.
        ranks: The global ranks on this node, by local rank; () where torch numbers them.
        gpus: The devices used, () for none.
        interface: The interface of the training traffic, "" when unknown.
        order: What its supervisor is told.
        nproc: How many ranks it starts; 0 in a plan from before, which names them.
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
    nproc: int = 0

    @property
    def size(self) -> int:
        """How many ranks it starts."""
        return self.nproc or len(self.ranks)


@dataclass(frozen=True)
class Plan:
    """What every host will be told, and what was decided on the way.

    `meeting` is why the ranks meet at `master_addr`, or at the etcd `endpoint`, "" for none;
    `master_port` is 0 where nobody was to reserve one. `setup` runs on every node first; `secrets`
    are names, never values; `release` and `commit` say which code runs, "" where it is the hosts'
    own, `sub` and `script` where in it (see `Code`), and `tasks_hash` which shipped tasks;
    `outputs` is what the task leaves to be fetched; `notes` are decisions worth saying aloud;
    with `least` nodes, and at most `most`, it may begin and go on, 0 where all must be there.
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
    endpoint: str = ""
    setup: Tuple[str, ...] = ()
    secrets: Tuple[str, ...] = ()
    release: str = ""
    commit: str = ""
    sub: str = ""
    script: str = ""
    tasks_hash: str = ""
    outputs: Tuple[str, ...] = ()
    notes: Tuple[str, ...] = ()
    least: int = 0
    most: int = 0

    @property
    def numbered_by_torch(self) -> bool:
        """Whether only torch knows which node has which ranks."""
        return not all(share.ranks for share in self.nodes)

    @property
    def restarts(self) -> bool:
        """Whether torch starts ranks that failed anew, and the run goes on."""
        return any(share.order.restarts for share in self.nodes)

    @property
    def node_of_rank(self) -> Dict[int, str]:
        """The node of each rank, as far as that is known beforehand."""
        return {rank: share.node for share in self.nodes for rank in share.ranks}

    @property
    def launcher(self) -> str:
        """What starts the ranks of each node, as messages name it."""
        return self.nodes[0].order.launcher or "the program"

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
    meeting = meet(spec, facts)
    gpus = {node.name: chosen_gpus(node, facts[node.name]) for node in spec.nodes}
    nproc = {node.name: _nproc(spec, node, gpus[node.name]) for node in spec.nodes}
    pythons = {name: facts[name].python for name in gpus if gpus[name]}
    deaf = [name for name, python in pythons.items() if python.torch and not python.torch_cuda]
    backend, problem = _backend(spec, gpus, nproc, deaf)
    if problem:
        raise NotReady([problem])
    ranks = _ranks(spec, nproc)
    these = _Attempt(attempt, meeting, backend, code)
    return Plan(
        run_id=spec.run_id,
        cluster=spec.cluster,
        task=spec.task.name,
        attempt=attempt,
        nodes=tuple(
            _node_plan(
                *(spec, index, facts[node.name], these),
                *(nproc[node.name], ranks[node.name], gpus[node.name]),
            )
            for index, node in enumerate(spec.nodes)
        ),
        world_size=sum(nproc.values()),
        backend=backend,
        master_addr=meeting.addr,
        master_port=meeting.port,
        meeting=meeting.why,
        endpoint=meeting.endpoint,
        setup=spec.setup,
        secrets=tuple(spec.secrets),
        release=code.release,
        commit=code.commit,
        sub=code.sub,
        script=code.script,
        tasks_hash=code.tasks_hash,
        outputs=spec.task.outputs,
        notes=tuple(notes(spec, facts, gpus, deaf, code)),
        least=spec.least or 0,
        most=(spec.most or len(spec.nodes)) if spec.least else 0,
    )


def _nproc(spec: Spec, node: Node, gpus: Sequence[int]) -> int:
    return 1 if spec.task.plain else node.nproc or len(gpus) or 1


def chosen_gpus(node: Node, facts: Facts) -> Tuple[int, ...]:
    """Return the indices of the GPUs this node will use."""
    if node.gpu_ids:
        return node.gpu_ids
    there = visible_gpus(facts)
    return there if node.gpu_count is None else there[: node.gpu_count]


@dataclass(frozen=True)
class _Attempt:
    """What holds for all nodes of one attempt."""

    number: int
    meeting: Meeting
    backend: str
    code: Code


def _ranks(spec: Spec, nproc: Mapping[str, int]) -> Dict[str, Tuple[int, ...]]:
    """Return each node's ranks in the order of the YAML, unless torch has an order of its own."""
    if spec.rendezvous.assigns:
        return {node.name: () for node in spec.nodes}
    ranks, base = {}, 0
    for node in spec.nodes:
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


def _node_plan(
    spec: Spec,
    index: int,
    facts: Facts,
    these: _Attempt,
    nproc: int,
    ranks: Tuple[int, ...],
    gpus: Tuple[int, ...],
) -> NodePlan:
    node, meeting = spec.nodes[index], these.meeting
    folder = RunFolder(facts.workdir, spec.run_id, node.name)
    script = _script(spec, facts, these.code)
    interface = _interface(spec, node, facts, meeting.route)
    place = Place(
        index=index,
        nproc=nproc,
        addr=meeting.addr,
        port=meeting.port,
        local_addr=meeting.local_addrs.get(node.name, ""),
        endpoint=meeting.endpoint,
    )
    python = facts.python.executable
    start = entry(spec, these.number, place, python=python, script=script, folder=folder)
    env = environment(
        *(spec, node, facts, these.backend, interface, nproc, gpus), attempt=these.number
    )
    env = {**start.env, **env}
    if spec.elastic:
        env = {**NO_SHARED_STORE, **env}
    env = {**flight_recorder(env, folder.flights(these.number)), **env}
    cwd = _cwd(spec, folder, facts, these.code)
    return NodePlan(
        node=node.name,
        host=node.host,
        command=start.command,
        env=env,
        cwd=cwd,
        ranks=ranks,
        gpus=gpus,
        interface=interface,
        order=replace(
            _order(spec, node, facts.workdir, these, start),
            env={**env, **start.plumbing},
            cwd=cwd,
            ranks=ranks,
            nproc=nproc,
        ),
        nproc=nproc,
    )


def _order(spec: Spec, node: Node, workdir: str, these: _Attempt, start: Entry) -> Order:
    """Return what a supervisor is told, but for what the plan of its node says."""
    meeting = these.meeting
    return Order(
        run_id=spec.run_id,
        node=node.name,
        attempt=these.number,
        workdir=workdir,
        argv=start.argv,
        env={},
        cwd="",
        ranks=(),
        shim=RunFolder(workdir, spec.run_id, node.name).shim,
        shim_python=spec.host_python,
        rank_prefix=start.rank_prefix,
        hide=PLUMBING if start.launcher else (),
        launcher=start.launcher,
        release=these.code.release,
        hold_port=meeting.held_port(node, spec),
        grace_s=spec.grace_s,
        disconnect_s=spec.disconnect_s,
        hub=meeting.hub,
        service=meeting.service,
        stall_s=spec.stall_s,
        stall_stops=spec.stall_stops,
        metrics=spec.metrics,
        stacks=spec.stacks,
        restarts=spec.rendezvous.assigns and spec.torchrun.max_restarts > 0,
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


def _interface(spec: Spec, node: Node, facts: Facts, route: str) -> str:
    if alone(spec) and not node.interface:
        return next((i.name for i in facts.interfaces if i.loopback), "lo")
    return addresses.interface_of(node, facts, route)
