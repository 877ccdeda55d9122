"""Planner: a pure function from the spec and the facts of all hosts to the plan, with its notes."""

from __future__ import annotations

import posixpath
from dataclasses import asdict, dataclass, replace
from typing import Callable, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Tuple

from runner.core.errors import NotReady, Problem
from runner.core.model.facts import ASSUMED, Facts
from runner.core.model.plan import NodePlan, Notify, Order, Plan
from runner.core.model.release import CodeRef
from runner.core.planning import endpoints
from runner.core.planning.container.base import facts_inside, wrap
from runner.core.planning.debug_rank import debug_env, debug_note, no_such_rank
from runner.core.planning.launch_command import (
    LaunchCommand,
    flight_recorder_env,
    launch_command,
    path_folder,
    rank_environment,
)
from runner.core.planning.readiness import (
    TMP_HINT,
    is_tmp_full,
    problems_of,
    visible_gpus,
    without_removed_env,
)
from runner.core.planning.rendezvous_flags import NO_SHARED_STORE, NodePosition
from runner.core.protocol.paths import RunPaths, tasks_folder
from runner.core.spec import Node, Spec
from runner.core.text import counted, join_some

NO_CODE = CodeRef()

FoldNames = Callable[[Sequence[str]], str]


@dataclass(frozen=True)
class _AttemptPlan:
    """Decisions about one attempt, from which the part of each node follows."""

    spec: Spec
    number: int
    code: CodeRef
    endpoints: endpoints.AttemptEndpoints
    backend: str
    nproc: Mapping[str, int]
    ranks: Mapping[str, Tuple[int, ...]]
    gpus: Mapping[str, Tuple[int, ...]]


def build_plan(
    spec: Spec,
    facts: Mapping[str, Facts],
    *,
    code: CodeRef = NO_CODE,
    attempt: int = 0,
    fold_names: FoldNames = join_some,
) -> Plan:
    """Return the plan of the run's n-th start, `attempt`, with the code that is sent with it.

    Where its notes are for a user, `fold_names` writes the names of nodes in them.

    Raises:
        NotReady: With all problems of all hosts.
    """
    facts = {n.name: without_removed_env(spec, n, facts[n.name]) for n in spec.nodes}
    problems = [p for node in spec.nodes for p in problems_of(spec, node, facts[node.name])]
    if problems:
        raise NotReady(problems)
    chosen = endpoints.choose_endpoints(spec, facts)
    if problems := endpoints.duplicate_addresses(spec, facts):
        raise NotReady(problems)
    gpus = {node.name: select_gpus(node, facts[node.name]) for node in spec.nodes}
    nproc = {
        node.name: 1 if spec.task.is_plain else node.nproc_per_node or len(gpus[node.name]) or 1
        for node in spec.nodes
    }
    pythons = {name: facts[name].python for name in gpus if gpus[name]}
    without_cuda = [
        name for name, python in pythons.items() if python.torch and not python.torch_cuda
    ]
    backend = _choose_backend(spec, gpus, nproc, without_cuda)
    ranks = _ranks(spec, nproc)
    attempt_plan = _AttemptPlan(spec, attempt, code, chosen, backend, nproc, ranks, gpus)
    return Plan(
        run_id=spec.run_id,
        cluster=spec.cluster.name,
        task=spec.task.name,
        attempt=attempt,
        nodes=tuple(
            _node_plan(attempt_plan, index, facts[node.name])
            for index, node in enumerate(spec.nodes)
        ),
        world_size=_world_size(spec, nproc),
        backend=backend,
        master_addr=chosen.addr,
        master_port=chosen.port,
        rendezvous_reason=chosen.reason,
        etcd_endpoint=spec.rendezvous.endpoint,
        secrets=tuple(spec.secrets),
        **asdict(code),
        image=spec.container.image,
        outputs=spec.task.outputs,
        notes=tuple(_notes(attempt_plan, facts, without_cuda, fold_names)),
        min_nodes=spec.min_nodes or 0,
        max_nodes=(spec.max_nodes or len(spec.nodes)) if spec.min_nodes else 0,
    )


def select_gpus(node: Node, facts: Facts) -> Tuple[int, ...]:
    """Return the indices of the GPUs that a node uses."""
    if node.gpu_ids:
        return node.gpu_ids
    visible = visible_gpus(facts)
    return visible if node.gpu_count is None else visible[: node.gpu_count]


def _world_size(spec: Spec, nproc: Mapping[str, int]) -> int:
    """Return the number of ranks; raise NotReady if the debugged one is not among them."""
    world_size = sum(nproc.values())
    if spec.debug_rank and spec.debug_rank.rank >= world_size:
        raise NotReady([no_such_rank(spec.debug_rank, world_size)])
    return world_size


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
) -> str:
    """Choose the backend; `without_cuda` are nodes with GPUs whose torch was built without CUDA."""
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


def _node_plan(attempt: _AttemptPlan, index: int, facts: Facts) -> NodePlan:
    spec, chosen, node = attempt.spec, attempt.endpoints, attempt.spec.nodes[index]
    gpus = attempt.gpus[node.name]
    run_paths = RunPaths(facts.workdir, spec.run_id, node.name)
    interface = endpoints.training_interface(node, facts, chosen.route)
    if spec.is_single_node and not node.interface:
        interface = next((i.name for i in facts.interfaces if i.loopback), "lo")
    position = NodePosition(
        index=index,
        nproc=attempt.nproc[node.name],
        addr=chosen.addr,
        port=chosen.port,
        local_addr=chosen.local_addrs.get(node.name, ""),
        attempt=attempt.number,
        first_rank=min(attempt.ranks[node.name], default=0),
        world_size=sum(attempt.nproc.values()),
    )
    script = _script(spec, facts, attempt.code)
    host_facts, facts = facts, facts_inside(facts) if spec.container else facts
    launch = launch_command(*(spec, node, position, facts), script=script, run_paths=run_paths)
    env = {
        **(NO_SHARED_STORE if spec.elastic else {}),
        **launch.env,
        **rank_environment(spec, node, facts, position, attempt.backend, interface, gpus),
    }
    env = {**flight_recorder_env(env, run_paths.flight_recorder_prefix(attempt.number)), **env}
    order = _order(attempt, node, facts, run_paths, launch)
    removed = spec.removed_env_of(node)
    node_plan = NodePlan(
        node=node.name,
        host=node.host,
        command=launch.command,
        arg_count=launch.arg_count,
        env={name: value for name, value in env.items() if name not in removed},
        cwd=order.cwd,
        ranks=order.ranks,
        gpus=gpus,
        interface=interface,
        order=replace(order, env={**env, **launch.internal_env, **debug_env(spec.debug_rank)}),
        nproc=order.nproc,
        user=node.user or spec.cluster.ssh.user or "",
        port=node.port or spec.cluster.ssh.port or 0,
        setup=spec.setup_of(node),
    )
    if spec.container:
        return wrap(spec, node, host_facts, node_plan, attempt.code.tasks_hash)
    return node_plan


def _order(
    attempt: _AttemptPlan, node: Node, facts: Facts, run_paths: RunPaths, launch: LaunchCommand
) -> Order:
    """Return the order of a node, without its environment."""
    spec, chosen = attempt.spec, attempt.endpoints
    return Order(
        run_id=spec.run_id,
        node=node.name,
        attempt=attempt.number,
        workdir=facts.workdir,
        argv=launch.argv,
        env={},
        cwd=_cwd(spec, run_paths, facts, attempt.code),
        ranks=attempt.ranks[node.name],
        rank_prefix=launch.rank_prefix,
        path_folder=path_folder(spec, node, facts),
        launcher=launch.launcher,
        release=attempt.code.release,
        reserve_port=chosen.port if node is spec.master else 0,
        grace_s=spec.grace_s,
        disconnect_s=spec.disconnect_s,
        hub=chosen.hub,
        stall_s=0.0 if spec.debug_rank else spec.watch.stall_s,
        stop_on_stall=spec.watch.stops,
        metrics=spec.watch.metrics,
        progress_pattern=spec.progress.pattern,
        sample_s=spec.sample_s,
        restarts_ranks=spec.rendezvous.torch_assigns_ranks and spec.torchrun.max_restarts > 0,
        nproc=attempt.nproc[node.name],
        decides=node.name == spec.deciding_node,
        notify=notify_part(spec) if node == spec.nodes[0] else None,
    )


def notify_part(spec: Spec, secrets: Iterable[str] = ()) -> Optional[Notify]:
    """Return what a host is to know to tell of a run, None where nobody is to be told.

    `secrets` are names of more secrets than those that the spec has.
    """
    if not spec.notify:
        return None
    nodes = tuple(node.name for node in spec.nodes)
    names = tuple(dict.fromkeys((*spec.secrets, *secrets)))
    return Notify(spec.notify, spec.cluster.name, spec.task.name, nodes, names, spec.program)


def _cwd(spec: Spec, run_paths: RunPaths, facts: Facts, code: CodeRef) -> str:
    if spec.task.shipped_file or not code.release:
        return run_paths.work if spec.task.shipped_file else facts.project
    return (
        posixpath.join(run_paths.work, code.subdirectory) if code.subdirectory else run_paths.work
    )


def _script(spec: Spec, facts: Facts, code: CodeRef) -> str:
    if spec.task.shipped_file:
        return posixpath.join(tasks_folder(facts.workdir, code.tasks_hash), spec.task.shipped_file)
    return (code.script or spec.task.target) if spec.task.kind == "script" else ""


def _notes(
    attempt: _AttemptPlan,
    facts: Mapping[str, Facts],
    without_cuda: Sequence[str],
    fold_names: FoldNames,
) -> Iterator[str]:
    """Yield the decisions that the user should read."""
    spec, code = attempt.spec, attempt.code
    cpu_nodes = [
        n.name for n in spec.nodes if not attempt.gpus[n.name] and n.nproc_per_node is None
    ]
    if cpu_nodes:
        is_assumed = facts[cpu_nodes[0]].gpu_source == ASSUMED
        yield _cpu_note(spec, fold_names(cpu_nodes), len(cpu_nodes), is_assumed)
    if without_cuda:
        yield f"GPUs, but a torch built without CUDA, on {fold_names(without_cuda)}: gloo is used"
    if spec.may_shrink and not spec.torchrun.max_restarts:
        yield (
            "torchrun.max_restarts is 0: nodes may join, and one that leaves ends the run "
            "(each one that leaves takes a restart of every node's)"
        )
    if spec.relaunch.max:
        times = "once" if spec.relaunch.max == 1 else f"up to {spec.relaunch.max} times in all"
        named = fold_names([node.name for node in spec.spares])
        spares = f"spare: {named}" if named else "no spare"
        yield f"if it fails it starts again, {times}; {spares}"
    if name := spec.deciding_node:
        yield f"the run ends when the program on {name} ends; the other nodes are stopped then"
    if spec.debug_rank:
        yield debug_note(spec, spec.debug_rank, attempt.ranks)
    yield from _logind_notes(spec, facts, fold_names)
    full = [n.name for n in spec.nodes if is_tmp_full(spec, n, facts[n.name])]
    if full:
        folder, on = facts[full[0]].tmp, fold_names(full)
        yield f"{folder} is full on {on}: what programs write there is lost; {TMP_HINT}"
    missing = [n.name for n in spec.nodes if code.release and not facts[n.name].has_release]
    if missing:
        on = fold_names(missing)
        yield f"release {code.release} is not on {on} yet: a launch pushes it first"


def _cpu_note(spec: Spec, named: str, count: int, is_assumed: bool) -> str:
    ranks_text = "1 rank" if count == 1 else "1 rank each"
    if is_assumed:
        return f"the GPUs of {named} are found at launch: {ranks_text} is shown here"
    how_to_add = "" if spec.task.is_plain else " (cluster.nproc_per_node sets more)"
    return f"no GPU on {named}: {ranks_text} on the CPU{how_to_add}"


def _logind_notes(spec: Spec, facts: Mapping[str, Facts], fold_names: FoldNames) -> Iterator[str]:
    """Name the hosts where logind would kill a run at logout."""
    nodes_by_setting: Dict[Tuple[str, str], List[str]] = {}
    for node in spec.nodes:
        host_facts = facts[node.name]
        if host_facts.logind_kill_setting:
            key = (host_facts.logind_kill_setting, host_facts.user)
            nodes_by_setting.setdefault(key, []).append(node.name)
    for (setting, user), names in nodes_by_setting.items():
        there = "there" if len(names) == 1 else "on them"
        yield (
            f"logind on {fold_names(names)} kills your processes when you log out "
            f"({setting}): without this launch the run would die {there}; an administrator "
            f"can set KillUserProcesses=no, or KillExcludeUsers={user}"
        )
