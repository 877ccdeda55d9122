"""Resource limits of ranks: open files, processes and locked memory."""

from __future__ import annotations

from collections.abc import Iterator

from runner.checks.context import CheckContext
from runner.core.model.facts import Facts
from runner.core.model.finding import Finding, Level

MIN_OPEN_FILES, MIN_PROCESSES = 4096, 4096
MIN_LOCKED_BYTES = 1 << 30
"""Bytes; NCCL registers its buffers with an InfiniBand device, and what is registered is locked."""


def limits(context: CheckContext) -> Iterator[Finding]:
    """Warn about low limits; a small task may run all the same."""
    for name, facts in context.answering:
        findings = list(_limit_findings(name, facts))
        yield from findings
        if facts.limits and not findings:
            files = facts.limits.get("nofile", -1)
            yield Finding(Level.OK, name, f"{'unlimited' if files < 0 else files} open files")


def _limit_findings(name: str, facts: Facts) -> Iterator[Finding]:
    limits = facts.limits
    hint = "add `ulimit -{flag} {wanted}` to cluster.setup, or edit /etc/security/limits.conf there"
    if 0 <= limits.get("nofile", -1) < MIN_OPEN_FILES:
        message = f"ulimit -n is {limits['nofile']}: data loaders and NCCL open many files"
        yield Finding(Level.WARNING, name, message, hint.format(flag="n", wanted=65536))
    if 0 <= limits.get("nproc", -1) < MIN_PROCESSES:
        message = f"ulimit -u is {limits['nproc']}: ranks, workers and threads all count"
        yield Finding(Level.WARNING, name, message, hint.format(flag="u", wanted=65536))
    devices = facts.system.infiniband
    if devices and 0 <= limits.get("memlock", -1) < MIN_LOCKED_BYTES:
        locked = limits["memlock"] >> 10
        message = f"ulimit -l is {locked} KiB: NCCL cannot register its buffers with {devices[0]}"
        yield Finding(Level.WARNING, name, message, hint.format(flag="l", wanted="unlimited"))
