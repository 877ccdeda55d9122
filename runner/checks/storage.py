"""Free space: below the workdir, and in shared memory."""

from __future__ import annotations

from collections.abc import Iterator

from runner.checks.context import CheckContext
from runner.core.model.finding import Finding, Level
from runner.core.planning.readiness import free_space_hint

LOW_DISK_BYTES, LOW_SHM_BYTES = 2 << 30, 1 << 30
"""Limits in bytes below which a run of some hours, or data loaders, may fail."""

FREE_STEPS_GIB = (2, 10, 100, 1000)
"""Free space is reported as more than one of these, so that similar hosts group together."""


def storage(context: CheckContext) -> Iterator[Finding]:
    """Report an error where nothing can be stored; warn where little space is left."""
    for node, facts in context.ready:
        if errors := context.unmet("storage", node):
            yield from errors
            continue
        free = facts.disk_free
        if free is not None and free < LOW_DISK_BYTES:
            message = f"{facts.workdir} has {free >> 20} MiB free for logs and checkpoints"
            yield Finding(Level.WARNING, node.name, message, free_space_hint(context.spec))
        else:
            yield Finding(Level.OK, node.name, f"{facts.workdir}, {_free_text(free)}")
        if facts.shm_free is not None and facts.shm_free < LOW_SHM_BYTES:
            message = (
                f"shared memory (/dev/shm) has {facts.shm_free >> 20} MiB free: when it is full, "
                "data loader workers and NCCL die of SIGBUS"
            )
            hint = "there: mount -o remount,size=16G /dev/shm; or a container's --shm-size"
            yield Finding(Level.WARNING, node.name, message, hint)


def _free_text(free: int | None) -> str:
    """Return roughly how much space is free."""
    if free is None:
        return "free space unknown"
    return f"more than {max(size for size in FREE_STEPS_GIB if size << 30 <= free)} GiB free"
