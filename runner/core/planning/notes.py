"""What a plan decided that is worth saying aloud."""

from __future__ import annotations

from typing import Dict, Iterator, List, Mapping, Sequence, Tuple

from runner.core.model.facts import ASSUMED, Facts
from runner.core.model.release import Code
from runner.core.model.spec import Spec

NAMED = 3
"""So many nodes a note names one by one."""


def notes(
    spec: Spec,
    facts: Mapping[str, Facts],
    gpus: Mapping[str, Tuple[int, ...]],
    deaf: Sequence[str],
    code: Code,
) -> Iterator[str]:
    """Yield the notes of a plan.

    Args:
        spec: What was asked.
        facts: One answer per node of `spec`.
        gpus: What each node uses of its own.
        deaf: Nodes with GPUs whose torch was built without CUDA.
        code: What travels with the run.
    """
    single = [node.name for node in spec.nodes if not gpus[node.name] and node.nproc is None]
    if single:
        yield _on_cpus(spec, facts, single)
    if deaf:
        yield f"GPUs, but a torch built without CUDA, on {_some(deaf)}: gloo is used"
    restarts = spec.torchrun.max_restarts
    if spec.least and spec.least < (spec.most or len(spec.nodes)) and not restarts:
        yield (
            "torchrun.max_restarts is 0: nodes may join, and one that leaves ends the run "
            "(each one that leaves takes a restart of every node's)"
        )
    if spec.relaunch.max:
        yield _relaunch(spec)
    yield from _logind(spec, facts)
    yield from _unpushed(spec, facts, code)


def _on_cpus(spec: Spec, facts: Mapping[str, Facts], names: Sequence[str]) -> str:
    each = "1 rank" if len(names) == 1 else "1 rank each"
    if facts[names[0]].gpu_source == ASSUMED:
        return f"the GPUs of {_some(names)} are found at launch: {each} is shown here"
    more = "" if spec.task.plain else " (cluster.nproc_per_node sets more)"
    return f"no GPU on {_some(names)}: {each} on the CPU{more}"


def _relaunch(spec: Spec) -> str:
    most = spec.relaunch.max
    times = "once" if most == 1 else f"up to {most} times in all"
    spares = [node.name for node in spec.spares]
    spare = f"spare: {_some(spares)}" if spares else "no spare"
    return f"if it fails it starts again, {times}; {spare}"


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


def _unpushed(spec: Spec, facts: Mapping[str, Facts], code: Code) -> Iterator[str]:
    names = [node.name for node in spec.nodes]
    lacking = [name for name in names if code.release and not facts[name].release_held]
    if lacking:
        yield f"release {code.release} is not on {_some(lacking)} yet: a launch pushes it first"


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more
