"""The GPUs of each node: as many as configured, of one model, and free."""

from __future__ import annotations

from collections.abc import Iterator

from runner.checks.context import CheckContext, used_gpus
from runner.core.model.facts import Facts, Gpu, GpuProcess
from runner.core.model.finding import Finding, Level


def gpus(context: CheckContext) -> Iterator[Finding]:
    """Report an error where GPUs are missing; warn about mixed models and GPUs in use."""
    models = {gpu.name for _, facts in context.answering for gpu in facts.gpus if gpu.name}
    for node, facts in context.ready:
        if errors := context.unmet("gpus", node):
            yield from errors
            continue
        used = used_gpus(node, facts)
        yield Finding(Level.OK, node.name, _gpus_text(used, facts))
        yield from _busy_findings(node.name, used)
    if len(models) > 1:
        message = f"{' and '.join(sorted(models))}: the slowest sets the pace"
        yield Finding(
            Level.WARNING, "", message, "leave nodes out with cluster.only or cluster.exclude"
        )


def _gpus_text(used: list[Gpu], facts: Facts) -> str:
    if not used:
        note = "" if facts.gpu_source in ("none", "nvml") else facts.gpu_source
        return f"none{f': {note}' if note else ''}"
    names = {gpu.name or "?" for gpu in used}
    return f"{len(used)} {', '.join(sorted(names))}"


def _busy_findings(node: str, used: list[Gpu]) -> Iterator[Finding]:
    for gpu in used:
        if gpu.processes:
            users = ", ".join(map(_process_text, gpu.processes))
            hint = f"wait, ask the user, or choose other GPUs: cluster.nodes.{node}.gpus"
            yield Finding(Level.WARNING, node, f"GPU {gpu.index} is in use: {users}", hint)


def _process_text(process: GpuProcess) -> str:
    memory = f", {process.memory >> 20} MiB" if process.memory else ""
    command = f" {process.command}" if process.command else ""
    return f"process {process.pid}{command} of {process.user or 'unknown'}{memory}"
