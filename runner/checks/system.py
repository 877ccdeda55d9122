"""Cores and memory of a node: enough for its ranks, close to their GPUs, and free."""

from __future__ import annotations

from collections.abc import Iterator

from runner.checks.context import CheckContext, used_gpus
from runner.core.model.facts import Facts
from runner.core.model.finding import Finding, Level
from runner.core.model.spec import Node
from runner.core.text import counted, format_ranges

LIMITED_SHARE = 0.75
"""A cgroup that allows less of the machine's memory than this is worth a warning."""
LOW_MEMORY_SHARE = 0.1
"""Share of the machine's memory: with less left, it swaps or kills."""
HIGH_LOAD_SHARE = 0.5
"""Share of the machine's cores, averaged over a minute."""


def system(context: CheckContext) -> Iterator[Finding]:
    """Warn where a run would start, but may be slow or killed."""
    for node, facts in context.ready:
        findings = [
            *_memory_findings(facts, context.spec.cluster),
            *_core_findings(node, facts),
            *_numa_findings(node, facts),
            *_load_findings(facts),
        ]
        for level, message, hint in findings:
            yield Finding(level, node.name, message, hint)
        if all(level is Level.OK for level, _, _ in findings) and facts.system.memory:
            memory = max(1, round(facts.system.memory / (1 << 30)))
            message = f"{counted(facts.cores, 'core')}, {memory} GiB of memory"
            yield Finding(Level.OK, node.name, message)


FindingText = tuple[Level, str, str]


def _memory_findings(facts: Facts, cluster: str) -> Iterator[FindingText]:
    machine = facts.system
    if not machine.memory:
        return
    if machine.memory_limit and machine.memory_limit < LIMITED_SHARE * machine.memory:
        message = (
            f"the cgroup of a run may use {_size(machine.memory_limit)} of the machine's "
            f"{_size(machine.memory)} of memory: beyond that the kernel kills ranks"
        )
        hint = (
            "use fewer ranks or data loader workers, or raise the limit: MemoryMax= of "
            "user-UID.slice there, a container's --memory"
        )
        yield Level.WARNING, message, hint
    if machine.memory_free is not None and machine.memory_free < LOW_MEMORY_SHARE * machine.memory:
        swapped = f", {_size(machine.swapped)} is swapped out" if machine.swapped else ""
        message = (
            f"{_size(machine.memory_free)} of {_size(machine.memory)} of memory is free{swapped}"
        )
        command = f"python -m runner exec --cluster {cluster} -- ps aux --sort=-rss"
        hint = f"to see the largest processes: {command}"
        yield Level.WARNING, message, hint


def _core_findings(node: Node, facts: Facts) -> Iterator[FindingText]:
    ranks = node.nproc or len(used_gpus(node, facts)) or 1
    if facts.cores < ranks:
        message = f"{counted(facts.cores, 'core')} for {ranks} ranks: they compete for time"
        hint = f"set cluster.nodes.{node.name}.nproc, or ask for a larger share (affinity, cpu.max)"
        yield Level.WARNING, message, hint


def _numa_findings(node: Node, facts: Facts) -> Iterator[FindingText]:
    own_numa = facts.system.numa_nodes
    used = [(gpu.index, gpu.health.numa_node) for gpu in used_gpus(node, facts) if gpu.health]
    gpu_numa = sorted({numa for _, numa in used if numa is not None})
    far_gpus = [index for index, numa in used if numa is not None and numa not in own_numa]
    if own_numa and far_gpus:
        message = (
            f"the cores of a run are on {format_ranges(own_numa, 'NUMA node')}, "
            f"{format_ranges(far_gpus, 'GPU')} elsewhere: their data crosses the machine"
        )
        hint = f"lift the affinity there, or use other GPUs: cluster.nodes.{node.name}.gpus"
        yield Level.WARNING, message, hint
    elif len(gpu_numa) > 1:
        yield Level.OK, f"its GPUs are on {format_ranges(gpu_numa, 'NUMA node')}", ""


def _load_findings(facts: Facts) -> Iterator[FindingText]:
    machine = facts.system
    if not machine.load or not machine.cpus or machine.load <= HIGH_LOAD_SHARE * machine.cpus:
        return
    top = facts.top_process
    top_text = ""
    if top:
        name = f" {top.command}" if top.command else ""
        top_text = f"; process {top.pid}{name} of {top.user or 'unknown'} takes {top.cores:g} cores"
    load = max(1, round(machine.load))
    message = f"a load of {load} on {counted(machine.cpus, 'core')}: they are in use{top_text}"
    yield Level.WARNING, message, "wait, ask the user, or leave the node out with cluster.exclude"


def _size(size: int) -> str:
    return f"{size / (1 << 30):.1f} GiB"
