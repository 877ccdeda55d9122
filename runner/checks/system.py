"""Whether a node's cores and memory are enough for its ranks, near their GPUs, and free."""

from __future__ import annotations

from collections.abc import Iterator

from runner.checks.context import Case, used_gpus
from runner.core.model.facts import Facts
from runner.core.model.finding import Finding, Level
from runner.core.model.spec import Node

LIMITED = 0.75
"""A cgroup that leaves less of the machine's memory than this is worth a word."""
LITTLE = 0.1
"""Of the machine's memory: with less left it swaps, or kills."""
LOADED = 0.5
"""Of the machine's cores, on average over a minute."""


def system(case: Case) -> Iterator[Finding]:
    """Warnings only: a run starts all the same, but may be slow, or killed."""
    for node, facts in case.ready:
        found = [
            *_memory(facts, case.spec.cluster),
            *_cores(node, facts),
            *_numa(node, facts),
            *_load(facts),
        ]
        for level, what, hint in found:
            yield Finding(level, node.name, what, hint)
        if all(level is Level.FINE for level, _, _ in found) and facts.system.memory:
            memory = max(1, round(facts.system.memory / (1 << 30)))
            what = f"{_counted(facts.cores, 'core')}, {memory} GiB of memory"
            yield Finding(Level.FINE, node.name, what)


Said = tuple[Level, str, str]


def _memory(facts: Facts, cluster: str) -> Iterator[Said]:
    told = facts.system
    if not told.memory:
        return
    if told.memory_limit and told.memory_limit < LIMITED * told.memory:
        what = (
            f"our cgroup may take {_size(told.memory_limit)} of the machine's "
            f"{_size(told.memory)} of memory: beyond that the kernel kills ranks"
        )
        hint = (
            "fewer ranks or data loaders' workers; or have it raised: MemoryMax= of user-UID.slice "
            "there, a container's --memory"
        )
        yield Level.WARNING, what, hint
    if told.memory_free is not None and told.memory_free < LITTLE * told.memory:
        swapped = f", {_size(told.swapped)} are swapped out" if told.swapped else ""
        what = f"{_size(told.memory_free)} of {_size(told.memory)} of memory are free{swapped}"
        hint = f"who has it: python -m runner exec --cluster {cluster} -- ps aux --sort=-rss"
        yield Level.WARNING, what, hint


def _cores(node: Node, facts: Facts) -> Iterator[Said]:
    ranks = node.nproc or len(used_gpus(node, facts)) or 1
    if facts.cores < ranks:
        what = f"{_counted(facts.cores, 'core')} for {ranks} ranks: they wait for each other"
        hint = f"set cluster.nodes.{node.name}.nproc, or have a larger share (affinity, cpu.max)"
        yield Level.WARNING, what, hint


def _numa(node: Node, facts: Facts) -> Iterator[Said]:
    ours = facts.system.numa
    used = [(gpu.index, gpu.health.numa) for gpu in used_gpus(node, facts) if gpu.health]
    theirs = sorted({numa for _, numa in used if numa is not None})
    far = [index for index, numa in used if numa is not None and numa not in ours]
    if ours and far:
        what = (
            f"our cores are at NUMA node {_list(ours)}, GPU {_list(far)} elsewhere: data for them "
            "crosses the machine"
        )
        hint = f"lift the affinity there, or use other GPUs: cluster.nodes.{node.name}.gpus"
        yield Level.WARNING, what, hint
    elif len(theirs) > 1:
        yield Level.FINE, f"its GPUs are at NUMA nodes {_list(theirs)}", ""


def _load(facts: Facts) -> Iterator[Said]:
    told = facts.system
    if not told.load or not told.cpus or told.load <= LOADED * told.cpus:
        return
    busy = facts.busiest
    who = ""
    if busy:
        name = f" {busy.command}" if busy.command else ""
        who = f"; process {busy.pid}{name} of {busy.user or 'unknown'} takes {busy.cores:g} cores"
    load = max(1, round(told.load))
    what = f"a load of {load} on {_counted(told.cpus, 'core')}: somebody uses them{who}"
    yield Level.WARNING, what, "wait, ask them, or cluster.exclude leaves it out"


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _list(numbers: tuple[int, ...] | list[int]) -> str:
    return ", ".join(map(str, numbers))


def _size(size: int) -> str:
    return f"{size / (1 << 30):.1f} GiB"
