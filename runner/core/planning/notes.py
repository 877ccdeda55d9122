"""Plan notes: decisions of a plan that the user should read."""

from __future__ import annotations

from typing import Dict, Iterator, List, Mapping, Sequence, Tuple

from runner.core.model.facts import ASSUMED, Facts
from runner.core.model.release import CodeRef
from runner.core.model.spec import Spec
from runner.core.text import join_some

MAX_NAMED = 3
"""The number of nodes that a note names one by one."""


def plan_notes(
    spec: Spec,
    facts: Mapping[str, Facts],
    gpus: Mapping[str, Tuple[int, ...]],
    without_cuda: Sequence[str],
    code: CodeRef,
) -> Iterator[str]:
    """Yield the notes of a plan.

    Args:
        spec: The run.
        facts: The facts of each node of `spec`.
        gpus: The GPUs that each node uses.
        without_cuda: Nodes with GPUs whose torch was built without CUDA.
        code: The code that is sent with the run.
    """
    cpu_nodes = [node.name for node in spec.nodes if not gpus[node.name] and node.nproc is None]
    if cpu_nodes:
        yield _cpu_note(spec, facts, cpu_nodes)
    if without_cuda:
        named = join_some(without_cuda, MAX_NAMED)
        yield f"GPUs, but a torch built without CUDA, on {named}: gloo is used"
    restarts = spec.torchrun.max_restarts
    if spec.min_nodes and spec.min_nodes < (spec.max_nodes or len(spec.nodes)) and not restarts:
        yield (
            "torchrun.max_restarts is 0: nodes may join, and one that leaves ends the run "
            "(each one that leaves takes a restart of every node's)"
        )
    if spec.relaunch.max:
        yield _relaunch_note(spec)
    yield from _logind_notes(spec, facts)
    yield from _unpushed_note(spec, facts, code)


def _cpu_note(spec: Spec, facts: Mapping[str, Facts], names: Sequence[str]) -> str:
    ranks_text = "1 rank" if len(names) == 1 else "1 rank each"
    named = join_some(names, MAX_NAMED)
    if facts[names[0]].gpu_source == ASSUMED:
        return f"the GPUs of {named} are found at launch: {ranks_text} is shown here"
    how_to_add = "" if spec.task.is_plain else " (cluster.nproc_per_node sets more)"
    return f"no GPU on {named}: {ranks_text} on the CPU{how_to_add}"


def _relaunch_note(spec: Spec) -> str:
    max_relaunches = spec.relaunch.max
    times = "once" if max_relaunches == 1 else f"up to {max_relaunches} times in all"
    spares = [node.name for node in spec.spares]
    spares_text = f"spare: {join_some(spares, MAX_NAMED)}" if spares else "no spare"
    return f"if it fails it starts again, {times}; {spares_text}"


def _logind_notes(spec: Spec, facts: Mapping[str, Facts]) -> Iterator[str]:
    """Name the hosts where logind would kill a run at logout."""
    nodes_by_setting: Dict[Tuple[str, str], List[str]] = {}
    for node in spec.nodes:
        host_facts = facts[node.name]
        if host_facts.logind_kill_setting:
            nodes_by_setting.setdefault(
                (host_facts.logind_kill_setting, host_facts.user), []
            ).append(node.name)
    for (setting, user), names in nodes_by_setting.items():
        there = "there" if len(names) == 1 else "on them"
        yield (
            f"logind on {join_some(names, MAX_NAMED)} kills your processes when you log out "
            f"({setting}): a run that outlives its connection would die {there}; an administrator "
            f"can set KillUserProcesses=no, or KillExcludeUsers={user}"
        )


def _unpushed_note(spec: Spec, facts: Mapping[str, Facts], code: CodeRef) -> Iterator[str]:
    names = [node.name for node in spec.nodes]
    missing = [name for name in names if code.release and not facts[name].has_release]
    if missing:
        named = join_some(missing, MAX_NAMED)
        yield f"release {code.release} is not on {named} yet: a launch pushes it first"
