"""Checks of a machine: the login and the setup there, its disk, limits, cores and clock."""

from __future__ import annotations

from collections.abc import Iterator

from runner.checks.base import CheckContext, check, error, node_check, ok, used_gpus, warning
from runner.core.errors import Finding
from runner.core.planning.readiness import free_space_hint
from runner.core.spec import Node, Spec
from runner.core.wire.facts import Facts
from runner.core.wire.text import counted

LOW_DISK_BYTES = 2 << 30  # with less, a run of some hours may fail
LOW_SHM_BYTES = 1 << 30  # with less, data loaders may
FREE_STEPS_GIB = (2, 10, 100, 1000)  # free space as reported, so that similar hosts group together
LIMITS = {
    "nofile": ("-n", 4096, "data loaders and NCCL open many files", "65536"),
    "nproc": ("-u", 4096, "ranks, workers and threads all count", "65536"),
    "memlock": ("-l", 1 << 30, "NCCL cannot register its buffers with {}", "unlimited"),
}
"""The option of `ulimit`, the least value, why, and a good value; the last with InfiniBand only."""

MAX_OFFSET_S = 2.0  # the offset of a clock that a launch and a log line may take


@check(10)
def reach(context: CheckContext) -> Iterator[Finding]:
    for node in context.spec.nodes:
        if node.name in context.unreachable:
            yield Finding.from_problem(context.unreachable[node.name])
        else:
            yield ok(node.name, f"as {context.facts[node.name].user}")


@check(20)
def setup(context: CheckContext) -> Iterator[Finding]:
    for node, _ in context.answering:
        for failure in context.unmet("setup", node):
            message = f"{failure.message}; this host is not checked any further"
            yield error(node.name, message, failure.hint)


@node_check(140)
def storage(spec: Spec, node: Node, facts: Facts) -> Iterator[Finding]:
    """Report an error where nothing can be stored or run; warn of little space."""
    free = facts.disk_free
    if free is None:
        yield ok(node.name, f"{facts.workdir}, free space unknown")
    elif free < LOW_DISK_BYTES:
        message = f"{facts.workdir} has {free >> 20} MiB free for logs and checkpoints"
        yield warning(node.name, message, free_space_hint(spec))
    else:
        at_least = max(size for size in FREE_STEPS_GIB if size << 30 <= free)
        yield ok(node.name, f"{facts.workdir}, more than {at_least} GiB free")
    has_own_shm = bool(spec.container.engine)
    if not has_own_shm and facts.shm_free is not None and facts.shm_free < LOW_SHM_BYTES:
        message = (
            f"shared memory (/dev/shm) has {facts.shm_free >> 20} MiB free: when it is full, "
            "data loader workers and NCCL die of SIGBUS"
        )
        hint = "there: mount -o remount,size=16G /dev/shm; or a container's --shm-size"
        yield warning(node.name, message, hint)


@node_check(150)
def limits(_: Spec, node: Node, facts: Facts) -> Iterator[Finding]:
    """Warn about low limits; a small task may run all the same."""
    devices = facts.infiniband
    is_low = False
    for name, (option, least, why, good) in LIMITS.items():
        limit = facts.limits.get(name, -1)
        if 0 <= limit < least and (devices or name != "memlock"):
            is_low = True
            shown = f"{limit >> 10} KiB" if name == "memlock" else limit
            message = f"ulimit {option} is {shown}: {why.format(*devices)}"
            hint = f"raise {name} to {good} in /etc/security/limits.conf there"
            yield warning(node.name, message, hint)
    if facts.limits and not is_low:
        files = facts.limits.get("nofile", -1)
        yield ok(node.name, f"{'unlimited' if files < 0 else files} open files")


@node_check(160)
def system(_: Spec, node: Node, facts: Facts) -> Iterator[Finding]:
    ranks = node.nproc_per_node or len(used_gpus(node, facts)) or 1
    cores = counted(facts.cores, "core")
    if facts.cores < ranks:
        key = f"cluster.nodes.{node.name}.nproc_per_node"
        hint = f"set {key}, or ask for more (affinity, cpu.max)"
        yield warning(node.name, f"{cores} for {ranks} ranks: they compete for time", hint)
    else:
        yield ok(node.name, cores)


@check(170)
def clock(context: CheckContext) -> Iterator[Finding]:
    """Warn about a clock that is off: nothing in a run depends on it, but times in logs do."""
    for name, offset in context.clock_offsets.items():
        if abs(offset) <= MAX_OFFSET_S:
            yield ok(name, "same as this machine's")
            continue
        side = "ahead of" if offset > 0 else "behind"
        message = f"its clock is {abs(offset):.0f} s {side} this machine's: times in logs are wrong"
        yield warning(name, message, "on that host: timedatectl set-ntp true")


@node_check(180, at_launch=True)
def logout(_: Spec, node: Node, facts: Facts) -> Iterator[Finding]:
    """An error where logind would kill a detached run, a warning where it kills other processes."""
    if facts.logind_kill_setting:
        message = (
            f"logind kills your processes when you log out ({facts.logind_kill_setting}): "
            "without its launch a run dies there"
        )
        hint = f"set KillUserProcesses=no or KillExcludeUsers={facts.user} in logind.conf there"
        yield warning(node.name, message, hint)
