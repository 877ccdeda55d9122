"""Planner: a pure function from the spec and the facts of all hosts to the plan, with its notes."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from runner.core.errors import NotReady, Problem
from runner.core.planning import endpoints
from runner.core.planning.container import wrap
from runner.core.planning.launch_command import (
    DEBUG_VARIABLE,
    node_program,
    rank_environment,
    typed_command,
)
from runner.core.planning.notes import FoldNames, plan_notes
from runner.core.planning.readiness import problems_of, visible_gpus, without_removed_env
from runner.core.spec import Node, Spec, Task
from runner.core.wire.facts import Facts
from runner.core.wire.order import Notify, Order, Program, environment
from runner.core.wire.paths import RunPaths, tasks_folder
from runner.core.wire.plan import CodeRef, NodePlan, Plan
from runner.core.wire.text import counted, join_some

NO_CODE = CodeRef()


@dataclass(frozen=True)
class _AttemptPlan:
    """Decisions about one attempt, from which the part of each node follows."""

    spec: Spec
    number: int
    code: CodeRef
    relaunches_left: int
    endpoints: endpoints.AttemptEndpoints
    backend: str
    ranks: Mapping[str, tuple[int, ...]]  # in rank order; () if torch assigns them
    world_size: int


def build_plan(
    spec: Spec,
    facts: Mapping[str, Facts],
    *,
    code: CodeRef = NO_CODE,
    attempt: int = 0,
    relaunches_left: int | None = None,
    fold_names: FoldNames = join_some,
) -> Plan:
    """Return the plan of the run's n-th start, `attempt`, with the code that is sent with it.

    Spares that have facts stand by if another attempt may follow, by default as the spec says.
    Where its notes are for a user, `fold_names` writes the names of nodes in them.

    Raises:
        NotReady: With all problems of all hosts.
    """
    left = spec.relaunch.max if relaunches_left is None else relaunches_left
    spares = [node for node in spec.spares if node.name in facts and left]
    facts = {n.name: without_removed_env(spec, n, facts[n.name]) for n in (*spec.nodes, *spares)}
    problems = [p for node in spec.nodes for p in problems_of(spec, node, facts[node.name])]
    problems = problems or endpoints.duplicate_addresses(spec, facts)
    if problems:
        raise NotReady(problems)
    gpus = {node.name: select_gpus(node, facts[node.name]) for node in spec.nodes}
    pythons = [(name, facts[name].python) for name in gpus if gpus[name]]
    without_cuda = [name for name, python in pythons if python.torch and not python.torch_cuda]
    attempt_plan = _decide(spec, facts, gpus, without_cuda, code, attempt, spares, left)
    chosen = attempt_plan.endpoints
    notes = plan_notes(
        spec,
        facts,
        gpus=gpus,
        ranks=attempt_plan.ranks,
        without_cuda=without_cuda,
        release=code.release,
        fold_names=fold_names,
    )
    return Plan(
        run_id=spec.run_id,
        cluster=spec.cluster.name,
        task=spec.task.name,
        attempt=attempt,
        nodes=tuple(_node_plan(attempt_plan, node, facts[node.name]) for node in spec.nodes),
        spares=tuple(_node_plan(attempt_plan, node, facts[node.name]) for node in spares),
        world_size=attempt_plan.world_size,
        backend=attempt_plan.backend,
        master_addr=chosen.addr,
        master_port=chosen.port,
        rendezvous_reason=chosen.reason,
        etcd_endpoint=spec.rendezvous.endpoint,
        secrets=tuple(spec.secrets),
        **asdict(code),
        image=spec.container.image or " ".join(spec.container.prefix),
        outputs=spec.task.outputs,
        notes=tuple(notes),
        min_nodes=spec.min_nodes or 0,
        max_nodes=(spec.max_nodes or len(spec.nodes)) if spec.min_nodes else 0,
    )


def select_gpus(node: Node, facts: Facts) -> tuple[int, ...]:
    """Return the indices of the GPUs that a node uses."""
    if node.gpu_ids:
        return node.gpu_ids
    visible = visible_gpus(facts)
    return visible if node.gpu_count is None else visible[: node.gpu_count]


def _decide(
    spec: Spec,
    facts: Mapping[str, Facts],
    gpus: Mapping[str, tuple[int, ...]],
    without_cuda: Sequence[str],
    code: CodeRef,
    attempt: int,
    spares: Sequence[Node],
    left: int,
) -> _AttemptPlan:
    """Decide about an attempt; `without_cuda` are nodes whose torch cannot use their GPUs."""
    chosen = endpoints.choose_endpoints(spec, facts, spares)
    nproc = {node.name: _nproc(spec.task, node, gpus[node.name]) for node in spec.nodes}
    backend = _choose_backend(spec, gpus, nproc, without_cuda)
    world_size = sum(nproc.values())
    if spec.debug_rank and spec.debug_rank.rank >= world_size:
        legal = f"0 to {world_size - 1}" if world_size > 1 else "0 alone"
        message = f"there is no rank {spec.debug_rank.rank}: this run has {legal}"
        raise NotReady([Problem("debug.rank", message)])
    ranks: dict[str, tuple[int, ...]] = {}
    base = 0
    for node in spec.nodes:
        count = 0 if spec.rendezvous.torch_assigns_ranks else nproc[node.name]
        ranks[node.name] = tuple(range(base, base + count))
        base += count
    return _AttemptPlan(spec, attempt, code, left, chosen, backend, ranks, world_size)


def _nproc(task: Task, node: Node, gpus: Sequence[int]) -> int:
    return 1 if task.is_plain else node.nproc_per_node or len(gpus) or 1


def _choose_backend(
    spec: Spec,
    gpus: Mapping[str, tuple[int, ...]],
    nproc: Mapping[str, int],
    without_cuda: Sequence[str],
) -> str:
    lacking_gpus = [name for name, chosen in gpus.items() if len(chosen) < nproc[name]]
    if spec.cluster.backend == "auto":
        return "gloo" if lacking_gpus or without_cuda else "nccl"
    if spec.cluster.backend == "nccl" and without_cuda:
        message = f"nccl needs a torch built for CUDA, and that of {without_cuda[0]} is not"
        hint = f"install one there (see {spec.nodes[0].python} -m pip install torch), or set "
        raise NotReady([Problem("cluster.backend", message, hint + "cluster.backend=gloo")])
    if spec.cluster.backend == "nccl" and lacking_gpus:
        name = lacking_gpus[0]
        ranks = counted(nproc[name], "rank")
        message = f"nccl needs a GPU per rank, and {name} has {len(gpus[name])} for {ranks}"
        hint = "set cluster.backend=gloo, or that of its accelerators: only NVIDIA's are counted"
        if gpus[name]:
            hint = (
                f"set cluster.backend=gloo, or fewer ranks with cluster.nodes.{name}.nproc_per_node"
            )
        raise NotReady([Problem("cluster.backend", message, hint)])
    return spec.cluster.backend


def _node_plan(attempt: _AttemptPlan, node: Node, host_facts: Facts) -> NodePlan:
    """Return the part of a node, which may be a spare."""
    spec = attempt.spec
    chosen = attempt.endpoints
    gpus = select_gpus(node, host_facts)
    nproc = _nproc(spec.task, node, gpus)
    run_paths = RunPaths(host_facts.workdir, spec.run_id, node.name)
    interface = endpoints.training_interface(node, host_facts, chosen.route)
    if spec.is_single_node and not node.interface:
        interface = next((i.name for i in host_facts.interfaces if i.loopback), "lo")
    facts = host_facts
    if spec.container:  # its Python is also that of our shim
        facts = replace(facts, host_python=facts.python.executable)
    if spec.container.engine:  # nothing of the host's environment is passed on
        facts = replace(facts, preset_env={})
    script = _script(spec, facts, attempt.code)
    rank_env = rank_environment(
        spec,
        node,
        facts,
        nproc=nproc,
        backend=attempt.backend,
        interface=interface,
        gpus=gpus,
    )
    cwd = _working_folder(attempt, facts, run_paths)
    rank_env.update(_code_environment(spec, node, facts, attempt.code, cwd))
    program = node_program(spec, node, facts, script=script, rank_env=rank_env, run_paths=run_paths)
    order = _order(attempt, node, facts, cwd, program, nproc)
    command, arg_count = typed_command(spec, node, facts, order, script)
    left_out = {*program.hidden, DEBUG_VARIABLE}
    node_plan = NodePlan(
        node=node.name,
        host=node.host,
        command=command,
        arg_count=arg_count,
        env={name: value for name, value in environment(order).items() if name not in left_out},
        ranks=order.ranks,
        gpus=gpus,
        interface=interface,
        order=order,
        user=node.user or spec.cluster.ssh.user or "",
        port=node.port or spec.cluster.ssh.port or 0,
        setup=spec.setup_of(node),
    )
    if spec.container:
        return wrap(spec, node, host_facts, node_plan, attempt.code.tasks_hash)
    return node_plan


def _working_folder(attempt: _AttemptPlan, facts: Facts, run_paths: RunPaths) -> str:
    if attempt.spec.task.shipped_file:
        return run_paths.work
    if not attempt.code.release:
        return facts.project
    return posixpath.join(run_paths.work, attempt.code.subdirectory).rstrip("/")


def _code_environment(
    spec: Spec, node: Node, facts: Facts, code: CodeRef, cwd: str
) -> dict[str, str]:
    """Return the variables that tell ranks what they run, and have Python look there first."""
    env = {}
    if code.release:
        env["RUNNER_RELEASE"] = code.release
    if code.commit:
        env["RUNNER_COMMIT"] = code.commit
    if code.python_path and "PYTHONPATH" not in spec.removed_env_of(node):
        folders = [posixpath.normpath(posixpath.join(cwd, each)) for each in code.python_path]
        if given := spec.env_of(node).get("PYTHONPATH"):
            folders.insert(0, given)
        elif facts.python.python_path:
            folders.append(facts.python.python_path)
        env["PYTHONPATH"] = ":".join(folders)
    return env


def _order(
    attempt: _AttemptPlan,
    node: Node,
    facts: Facts,
    cwd: str,
    program: Program,
    nproc: int,
) -> Order:
    spec = attempt.spec
    chosen = attempt.endpoints
    is_standby = node.name not in attempt.ranks
    return Order(
        run_id=spec.run_id,
        node=node.name,
        attempt=attempt.number,
        workdir=facts.workdir,
        cwd=cwd,
        program=program,
        node_rank=0 if is_standby else [*attempt.ranks].index(node.name),
        is_standby=is_standby,
        nnodes=len(spec.nodes),
        nproc=nproc,
        first_rank=min(attempt.ranks.get(node.name, ()), default=None),
        world_size=attempt.world_size,
        master_addr=chosen.addr,
        master_port=chosen.port,
        ports=chosen.spare_ports,
        local_addr=chosen.local_addrs.get(node.name, ""),
        min_nodes=spec.min_nodes or 0,
        max_nodes=spec.max_nodes or 0,
        release=attempt.code.release,
        grace_s=spec.grace_s,
        disconnect_s=spec.disconnect_s,
        hub=chosen.hub,
        stall_s=0.0 if spec.debug_rank else spec.watch.stall_s,
        stop_on_stall=spec.watch.stops,
        progress_pattern=spec.progress.pattern,
        sample_s=spec.sample_s,
        relaunches_left=attempt.relaunches_left,
        relaunch_pause_s=spec.relaunch.delay_s(spec.relaunch.max - attempt.relaunches_left + 1),
        relaunches_stalls=spec.watch.relaunches,
        decides=node.name == spec.deciding_node,
        notify=notify_part(spec) if node is spec.master else None,
    )


def notify_part(spec: Spec, secrets: Iterable[str] = ()) -> Notify | None:
    """Return what a host is to know to tell of a run, None where nobody is to be told.

    `secrets` are names of more secrets than those that the spec has.
    """
    if not spec.notify:
        return None
    nodes = tuple(node.name for node in spec.nodes)
    names = tuple(dict.fromkeys((*spec.secrets, *secrets)))
    return Notify(spec.notify, spec.cluster.name, spec.task.name, nodes, names, spec.program)


def _script(spec: Spec, facts: Facts, code: CodeRef) -> str:
    if spec.task.shipped_file:
        return posixpath.join(tasks_folder(facts.workdir, code.tasks_hash), spec.task.shipped_file)
    return (code.script or spec.task.target) if spec.task.kind == "script" else ""
