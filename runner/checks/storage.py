"""Whether the disks have room: that of the workdir, and the shared memory."""

from __future__ import annotations

from collections.abc import Iterator

from runner.checks.context import CheckContext
from runner.core.model.finding import Finding, Level
from runner.core.planning.readiness import free_space_hint

LOW_DISK_BYTES, LOW_SHM_BYTES = 2 << 30, 1 << 30
"""Below so many bytes a run of some hours, or data loaders, may be in trouble."""

FREE_STEPS_GIB = (2, 10, 100, 1000)
"""What is free is told as more than one of these, so that hosts are alike."""


def storage(context: CheckContext) -> Iterator[Finding]:
    """An error where nothing can be stored, a warning where there is little room."""
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
                f"shared memory (/dev/shm) has {facts.shm_free >> 20} MiB free: data loaders' "
                "workers and NCCL use it, and die of SIGBUS when it is full"
            )
            hint = "mount -o remount,size=16G /dev/shm there, or a container's --shm-size"
            yield Finding(Level.WARNING, node.name, message, hint)


def _free_text(free: int | None) -> str:
    """Return about how much is free."""
    if free is None:
        return "room is not known"
    return f"more than {max(size for size in FREE_STEPS_GIB if size << 30 <= free)} GiB free"
