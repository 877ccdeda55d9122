"""Planner: a pure function from the spec and the facts of all hosts to the plan."""

from __future__ import annotations

import posixpath
from dataclasses import asdict, dataclass, replace
from typing import Dict, List, Mapping, Optional, Sequence, Tuple

from runner.core.errors import NotReady, Problem
from runner.core.model.facts import Facts
from runner.core.model.order import Order
from runner.core.model.plan import NodePlan, Plan
from runner.core.model.release import CodeRef
from runner.core.model.spec import Node, Spec
from runner.core.planning import addresses
from runner.core.planning.endpoints import AttemptEndpoints, choose_endpoints, is_single_node
from runner.core.planning.launch_command import (
    INTERNAL_ENV,
    LaunchCommand,
    flight_recorder_env,
    launch_command,
    rank_environment,
)
from runner.core.planning.notes import plan_notes
from runner.core.planning.readiness import problems_of, visible_gpus
from runner.core.planning.rendezvous_flags import NO_SHARED_STORE, NodePosition
from runner.core.protocol.paths import RunPaths, tasks_folder
from runner.core.text import counted

NO_CODE = CodeRef()


def build_plan(
    spec: Spec, facts: Mapping[str, Facts], *, code: CodeRef = NO_CODE, attempt: int = 0
) -> Plan:
    """Return the plan of an attempt.

    Args:
        spec: The run.
        facts: The facts of each node of `spec`.
        code: The code that is sent with the run.
        attempt: The run's n-th start, from 0.

    Raises:
        NotReady: With all problems of all hosts.
    """
    problems: List[Problem] = []
    for node in spec.nodes:
        problems += problems_of(spec, node, facts[node.name])
    if problems:
        raise NotReady(problems)
    endpoints = choose_endpoints(spec, facts)
    if problems := addresses.duplicate_addresses(spec, spec.nodes, facts):
        raise NotReady(problems)
    gpus = {node.name: select_gpus(node, facts[node.name]) for node in spec.nodes}
    nproc = {node.name: _nproc(spec, node, gpus[node.name]) for node in spec.nodes}
    pythons = {name: facts[name].python for name in gpus if gpus[name]}
    without_cuda = [
        name for name, python in pythons.items() if python.torch and not python.torch_cuda
    ]
    backend, problem = _choose_backend(spec, gpus, nproc, without_cuda)
    if problem:
        raise NotReady([problem])
    attempt_plan = _AttemptPlan(
        spec, attempt, code, endpoints, backend, nproc, _ranks(spec, nproc), gpus
    )
    return Plan(
        run_id=spec.run_id,
        cluster=spec.cluster,
        task=spec.task.name,
        attempt=attempt,
        nodes=tuple(
            _node_plan(attempt_plan, index, facts[node.name])
            for index, node in enumerate(spec.nodes)
        ),
        world_size=sum(nproc.values()),
        backend=backend,
        master_addr=endpoints.addr,
        master_port=endpoints.port,
        rendezvous_reason=endpoints.reason,
        etcd_endpoint=endpoints.etcd_endpoint,
        setup=spec.setup,
        secrets=tuple(spec.secrets),
        **asdict(code),
        outputs=spec.task.outputs,
        notes=tuple(plan_notes(spec, facts, gpus, without_cuda, code)),
        min_nodes=spec.min_nodes or 0,
        max_nodes=(spec.max_nodes or len(spec.nodes)) if spec.min_nodes else 0,
    )


def _nproc(spec: Spec, node: Node, gpus: Sequence[int]) -> int:
    return 1 if spec.task.is_plain else node.nproc or len(gpus) or 1


def select_gpus(node: Node, facts: Facts) -> Tuple[int, ...]:
    """Return the indices of the GPUs that a node uses."""
    if node.gpu_ids:
        return node.gpu_ids
    visible = visible_gpus(facts)
    return visible if node.gpu_count is None else visible[: node.gpu_count]


@dataclass(frozen=True)
class _AttemptPlan:
    """Decisions about one attempt, from which the part of each node follows."""

    spec: Spec
    number: int
    code: CodeRef
    endpoints: AttemptEndpoints
    backend: str
    nproc: Mapping[str, int]
    ranks: Mapping[str, Tuple[int, ...]]
    gpus: Mapping[str, Tuple[int, ...]]


def _ranks(spec: Spec, nproc: Mapping[str, int]) -> Dict[str, Tuple[int, ...]]:
    """Return each node's ranks in the order of the YAML; () if torch assigns them."""
    if spec.rendezvous.torch_assigns_ranks:
        return {node.name: () for node in spec.nodes}
    ranks, base = {}, 0
    for node in spec.nodes:
        ranks[node.name] = tuple(range(base, base + nproc[node.name]))
        base += nproc[node.name]
    return ranks


def _choose_backend(
    spec: Spec,
    gpus: Mapping[str, Tuple[int, ...]],
    nproc: Mapping[str, int],
    without_cuda: Sequence[str],
) -> Tuple[str, Optional[Problem]]:
    """Choose the backend; `without_cuda` are nodes with GPUs whose torch was built without CUDA."""
    if without_cuda and spec.backend == "nccl":
        return "", Problem(
            subject="cluster.backend",
            message=f"nccl needs a torch built for CUDA, and that of {without_cuda[0]} is not",
            hint=f"install one there (see {spec.python} -m pip install torch), or set "
            "cluster.backend=gloo",
        )
    lacking_gpus = [name for name, chosen in gpus.items() if len(chosen) < nproc[name]]
    if spec.backend == "auto":
        return ("gloo" if lacking_gpus or without_cuda else "nccl"), None
    if spec.backend == "nccl" and lacking_gpus:
        name = lacking_gpus[0]
        fewer = f", or fewer ranks with cluster.nodes.{name}.nproc_per_node" if gpus[name] else ""
        return "", Problem(
            subject="cluster.backend",
            message=f"nccl needs a GPU per rank, and {name} has {len(gpus[name])} "
            f"for {counted(nproc[name], 'rank')}",
            hint=f"set cluster.backend=gloo{fewer}",
        )
    return spec.backend, None


def _node_plan(attempt: _AttemptPlan, index: int, facts: Facts) -> NodePlan:
    spec, number, endpoints = attempt.spec, attempt.number, attempt.endpoints
    node = spec.nodes[index]
    nproc, gpus = attempt.nproc[node.name], attempt.gpus[node.name]
    run_paths = RunPaths(facts.workdir, spec.run_id, node.name)
    interface = _interface(spec, node, facts, endpoints.route)
    position = NodePosition(
        index=index,
        nproc=nproc,
        addr=endpoints.addr,
        port=endpoints.port,
        local_addr=endpoints.local_addrs.get(node.name, ""),
        etcd_endpoint=endpoints.etcd_endpoint,
    )
    launch = launch_command(
        *(spec, number, position),
        python=facts.python.executable,
        script=_script(spec, facts, attempt.code),
        run_paths=run_paths,
    )
    env = {
        **(NO_SHARED_STORE if spec.elastic else {}),
        **launch.env,
        **rank_environment(
            *(spec, node, facts, attempt.backend, interface, nproc, gpus), attempt=number
        ),
    }
    env = {**flight_recorder_env(env, run_paths.flight_recorder_prefix(number)), **env}
    order = _order(attempt, node, facts, run_paths, launch)
    return NodePlan(
        node=node.name,
        host=node.host,
        command=launch.command,
        env=env,
        cwd=order.cwd,
        ranks=order.ranks,
        gpus=gpus,
        interface=interface,
        order=replace(order, env={**env, **launch.internal_env}),
        nproc=nproc,
    )


def _order(
    attempt: _AttemptPlan, node: Node, facts: Facts, run_paths: RunPaths, launch: LaunchCommand
) -> Order:
    """Return the order of a node, without its environment."""
    spec, endpoints = attempt.spec, attempt.endpoints
    return Order(
        run_id=spec.run_id,
        node=node.name,
        attempt=attempt.number,
        workdir=facts.workdir,
        argv=launch.argv,
        env={},
        cwd=_cwd(spec, run_paths, facts, attempt.code),
        ranks=attempt.ranks[node.name],
        shim=run_paths.shim,
        shim_python=spec.host_python,
        rank_prefix=launch.rank_prefix,
        hidden_env=INTERNAL_ENV if launch.launcher else (),
        launcher=launch.launcher,
        release=attempt.code.release,
        reserve_port=endpoints.reserved_port(node, spec),
        grace_s=spec.grace_s,
        disconnect_s=spec.disconnect_s,
        hub=endpoints.hub,
        sidecar=endpoints.sidecar,
        stall_s=spec.stall_s,
        stop_on_stall=spec.stop_on_stall,
        metrics=spec.metrics,
        stacks=spec.stacks,
        restarts_ranks=spec.rendezvous.torch_assigns_ranks and spec.torchrun.max_restarts > 0,
        nproc=attempt.nproc[node.name],
    )


def _cwd(spec: Spec, run_paths: RunPaths, facts: Facts, code: CodeRef) -> str:
    if spec.task.shipped_file:
        return run_paths.work
    if not code.release:
        return facts.project
    return (
        posixpath.join(run_paths.work, code.subdirectory) if code.subdirectory else run_paths.work
    )


def _script(spec: Spec, facts: Facts, code: CodeRef) -> str:
    if spec.task.shipped_file:
        return posixpath.join(tasks_folder(facts.workdir, code.tasks_hash), spec.task.shipped_file)
    return (code.script or spec.task.target) if spec.task.kind == "script" else ""


def _interface(spec: Spec, node: Node, facts: Facts, route: str) -> str:
    if is_single_node(spec) and not node.interface:
        return next((i.name for i in facts.interfaces if i.loopback), "lo")
    return addresses.training_interface(node, facts, route)
