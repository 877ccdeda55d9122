"""Checks of a machine's disk, limits, memory, cores and clock."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from runner.checks.base import CheckContext, check, ok, used_gpus, warning
from runner.core.model.facts import Facts
from runner.core.model.results import Finding, Level
from runner.core.planning.readiness import TMP_HINT, free_space_hint, is_tmp_full
from runner.core.protocol.paths import releases_folder
from runner.core.shell import cluster_flag, this_program
from runner.core.spec import Node, Spec
from runner.core.text import counted, format_ranges

LOW_DISK_BYTES, LOW_SHM_BYTES = 2 << 30, 1 << 30  # a run of some hours, or data loaders, may fail
FREE_STEPS_GIB = (2, 10, 100, 1000)  # free space as reported, so that similar hosts group together
MIN_OPEN_FILES, MIN_PROCESSES = 4096, 4096
MIN_LOCKED_BYTES = 1 << 30  # NCCL registers, and so locks, its buffers with an InfiniBand device
LIMITED_SHARE = 0.75  # a cgroup that allows less of the machine's memory is worth a warning
LOW_MEMORY_SHARE = 0.1  # share of the machine's memory: with less left, it swaps or kills
HIGH_LOAD_SHARE = 0.5  # share of the machine's cores, averaged over a minute
MAX_OFFSET_S = 2.0  # the offset of a clock that a launch and a log line may take


@check(140)
def storage(context: CheckContext) -> Iterator[Finding]:
    """Report an error where nothing can be stored or run; warn of little space, or changed code."""
    for node, facts in context.ready:
        if errors := context.unmet("storage", node):
            yield from errors
            continue
        free = facts.disk_free
        if free is not None and free < LOW_DISK_BYTES:
            message = f"{facts.workdir} has {free >> 20} MiB free for logs and checkpoints"
            yield warning(node.name, message, free_space_hint(context.spec, facts))
        elif free is None:
            yield ok(node.name, f"{facts.workdir}, free space unknown")
        else:
            at_least = max(size for size in FREE_STEPS_GIB if size << 30 <= free)
            yield ok(node.name, f"{facts.workdir}, more than {at_least} GiB free")
        if facts.has_release and facts.release_damage != "":
            yield _release_warning(context.spec, facts)
        if facts.tmp_free is not None and is_tmp_full(context.spec, node, facts):
            message = f"{facts.tmp} has {facts.tmp_free >> 20} MiB free for temporary files"
            yield warning(node.name, message, TMP_HINT)
        shares_shm = context.spec.container.ipc == "host"
        has_own_shm = context.spec.container and not shares_shm
        if not has_own_shm and facts.shm_free is not None and facts.shm_free < LOW_SHM_BYTES:
            message = (
                f"shared memory (/dev/shm) has {facts.shm_free >> 20} MiB free: when it is full, "
                "data loader workers and NCCL die of SIGBUS"
            )
            hint = "there: mount -o remount,size=16G /dev/shm; or a container's --shm-size"
            yield warning(node.name, message, hint)


def _release_warning(spec: Spec, facts: Facts) -> Finding:
    message = f"the pushed code differs from what is here: {facts.release_damage}"
    if facts.release_damage is None:
        message = "the pushed code could not be read: the disk is slow, or access is denied"
    hosts = f"{cluster_flag(spec.cluster.name)} --set 'cluster.only=[{facts.node}]'"
    remove = f"rm -rf {shlex.quote(releases_folder(facts.workdir))}"
    hint = f"remove it, and the next launch sends it: {this_program()} exec {hosts} -- {remove}"
    return warning(facts.node, message, hint)


@check(150)
def limits(context: CheckContext) -> Iterator[Finding]:
    """Warn about low limits; a small task may run all the same."""
    for node, facts in context.answering:
        findings = list(_limit_findings(node.name, facts))
        yield from findings
        if facts.limits and not findings:
            files = facts.limits.get("nofile", -1)
            yield ok(node.name, f"{'unlimited' if files < 0 else files} open files")


def _limit_findings(name: str, facts: Facts) -> Iterator[Finding]:
    limits, devices = facts.limits, facts.system.infiniband
    hint = "raise {name} to {wanted} in /etc/security/limits.conf there"
    if 0 <= limits.get("nofile", -1) < MIN_OPEN_FILES:
        message = f"ulimit -n is {limits['nofile']}: data loaders and NCCL open many files"
        yield warning(name, message, hint.format(name="nofile", wanted=65536))
    if 0 <= limits.get("nproc", -1) < MIN_PROCESSES:
        message = f"ulimit -u is {limits['nproc']}: ranks, workers and threads all count"
        yield warning(name, message, hint.format(name="nproc", wanted=65536))
    if devices and 0 <= limits.get("memlock", -1) < MIN_LOCKED_BYTES:
        locked = limits["memlock"] >> 10
        message = f"ulimit -l is {locked} KiB: NCCL cannot register its buffers with {devices[0]}"
        yield warning(name, message, hint.format(name="memlock", wanted="unlimited"))


@check(160)
def system(context: CheckContext) -> Iterator[Finding]:
    """Warn where cores or memory are too few for the ranks, far from their GPUs, or in use."""
    for node, facts in context.ready:
        findings = [
            *_memory_findings(node, facts, context.spec.cluster.name),
            *_core_findings(node, facts),
            *_load_findings(node, facts),
        ]
        yield from findings
        if all(finding.level is Level.OK for finding in findings) and facts.system.memory:
            memory = max(1, round(facts.system.memory / (1 << 30)))
            yield ok(node.name, f"{counted(facts.cores, 'core')}, {memory} GiB of memory")


def _memory_findings(node: Node, facts: Facts, cluster: str) -> Iterator[Finding]:
    machine = facts.system
    total, limit, free = machine.memory, machine.memory_limit, machine.memory_free
    if not total:
        return
    if limit and limit < LIMITED_SHARE * total:
        message = (
            f"the cgroup of a run may use {_size(limit)} of the machine's {_size(total)} of "
            "memory: beyond that the kernel kills ranks"
        )
        hint = (
            "use fewer ranks or data loader workers, or raise the limit: MemoryMax= of "
            "user-UID.slice there, a container's --memory"
        )
        yield warning(node.name, message, hint)
    if free is not None and free < LOW_MEMORY_SHARE * total:
        swapped = f", {_size(machine.swapped)} is swapped out" if machine.swapped else ""
        message = f"{_size(free)} of {_size(total)} of memory is free{swapped}"
        command = f"{this_program()} exec {cluster_flag(cluster)} -- ps aux --sort=-rss"
        yield warning(node.name, message, f"to see the largest processes: {command}")


def _core_findings(node: Node, facts: Facts) -> Iterator[Finding]:
    gpus = used_gpus(node, facts)
    ranks = node.nproc_per_node or len(gpus) or 1
    if facts.cores < ranks:
        message = f"{counted(facts.cores, 'core')} for {ranks} ranks: they compete for time"
        key = f"cluster.nodes.{node.name}.nproc_per_node"
        hint = f"set {key}, or ask for a larger share (affinity, cpu.max)"
        yield warning(node.name, message, hint)
    own_numa = facts.system.numa_nodes
    known = [(gpu.index, gpu.health.numa_node) for gpu in gpus if gpu.health]
    numa_of_gpu = {index: numa for index, numa in known if numa is not None}
    far_gpus = [index for index, numa in numa_of_gpu.items() if numa not in own_numa]
    gpu_numa = sorted(set(numa_of_gpu.values()))
    if own_numa and far_gpus:
        message = (
            f"the cores of a run are on {format_ranges(own_numa, 'NUMA node')}, "
            f"{format_ranges(far_gpus, 'GPU')} elsewhere: their data crosses the machine"
        )
        hint = f"lift the affinity there, or use other GPUs: cluster.nodes.{node.name}.gpus"
        yield warning(node.name, message, hint)
    elif len(gpu_numa) > 1:
        yield ok(node.name, f"its GPUs are on {format_ranges(gpu_numa, 'NUMA node')}")


def _load_findings(node: Node, facts: Facts) -> Iterator[Finding]:
    machine, top = facts.system, facts.top_process
    if not machine.load or not machine.cpus or machine.load <= HIGH_LOAD_SHARE * machine.cpus:
        return
    used_by = ""
    if top:
        name = f" {top.command}" if top.command else ""
        used_by = f"; process {top.pid}{name} of {top.user or 'unknown'} takes {top.cores:g} cores"
    load = f"a load of {max(1, round(machine.load))} on {counted(machine.cpus, 'core')}"
    hint = "wait, ask the user, or leave the node out with cluster.exclude"
    yield warning(node.name, f"{load}: they are in use{used_by}", hint)


def _size(size: int) -> str:
    return f"{size / (1 << 30):.1f} GiB"


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
