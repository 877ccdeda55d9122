"""Whether the disks have room: that of the workdir, and the shared memory."""

from __future__ import annotations

from collections.abc import Iterator

from runner.checks.context import Case
from runner.core.model.finding import Finding, Level
from runner.core.planning.readiness import room_problems, storage_problems

LITTLE_DISK, LITTLE_SHM = 2 << 30, 1 << 30
"""Below so many bytes a run of some hours, or data loaders, may be in trouble."""

ROOM_GIB = (2, 10, 100, 1000)
"""What is free is told as more than one of these, so that hosts are alike."""


def storage(case: Case) -> Iterator[Finding]:
    """An error where nothing can be stored, a warning where there is little room."""
    for node, facts in case.ready:
        problems = [*storage_problems(node, facts), *room_problems(case.spec, node, facts)]
        yield from map(Finding.of, problems)
        if problems:
            continue
        free = facts.disk_free
        if free is not None and free < LITTLE_DISK:
            what = f"{facts.workdir} has {free >> 20} MiB free for logs and checkpoints"
            hint = (
                "remove what ended runs left: python -m runner clean --cluster "
                f"{case.spec.cluster} --older-than 1h\nor set cluster.workdir to another disk"
            )
            yield Finding(Level.WARNING, node.name, what, hint)
        else:
            yield Finding(Level.FINE, node.name, f"{facts.workdir}, {_room(free)}")
        if facts.shm_free is not None and facts.shm_free < LITTLE_SHM:
            what = (
                f"shared memory (/dev/shm) has {facts.shm_free >> 20} MiB free: data loaders' "
                "workers and NCCL use it, and die of SIGBUS when it is full"
            )
            hint = "mount -o remount,size=16G /dev/shm there, or a container's --shm-size"
            yield Finding(Level.WARNING, node.name, what, hint)


def _room(free: int | None) -> str:
    """Return about how much is free."""
    if free is None:
        return "room is not known"
    return f"more than {max(size for size in ROOM_GIB if size << 30 <= free)} GiB free"
