"""Whether the GPUs the YAML asks for are there, alike, and free."""

from __future__ import annotations

from collections.abc import Iterator

from runner.checks.context import Case, used_gpus
from runner.core.model.facts import Facts, Gpu, GpuProcess
from runner.core.model.finding import Finding, Level
from runner.core.planning.readiness import gpu_problems


def gpus(case: Case) -> Iterator[Finding]:
    """An error where there are too few, a warning where they are mixed or somebody's."""
    models = {gpu.name for _, facts in case.there for gpu in facts.gpus if gpu.name}
    for node, facts in case.ready:
        problems = gpu_problems(node, facts)
        yield from map(Finding.of, problems)
        if problems:
            continue
        used = used_gpus(node, facts)
        yield Finding(Level.FINE, node.name, _shown(used, facts))
        yield from _busy(node.name, used)
    if len(models) > 1:
        what = f"{' and '.join(sorted(models))}: the slowest sets the pace of all"
        yield Finding(Level.WARNING, "", what, "cluster.only or cluster.exclude leave nodes out")


def _shown(used: list[Gpu], facts: Facts) -> str:
    if not used:
        known = "" if facts.gpu_source in ("none", "nvml", "nvidia-smi") else facts.gpu_source
        return f"none{f': {known}' if known else ''}"
    names = {gpu.name or "?" for gpu in used}
    return f"{len(used)} {', '.join(sorted(names))}"


def _busy(node: str, used: list[Gpu]) -> Iterator[Finding]:
    for gpu in used:
        if gpu.processes:
            who = ", ".join(map(_holder, gpu.processes))
            hint = f"wait, ask them, or choose others: cluster.nodes.{node}.gpus"
            yield Finding(Level.WARNING, node, f"GPU {gpu.index} is in use: {who}", hint)


def _holder(process: GpuProcess) -> str:
    memory = f", {process.memory >> 20} MiB" if process.memory else ""
    command = f" {process.command}" if process.command else ""
    return f"process {process.pid}{command} of {process.user or 'unknown'}{memory}"
