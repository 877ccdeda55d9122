"""Checks of the GPUs that a run would use: their number and model, their driver, their health."""

from __future__ import annotations

import re
from collections.abc import Iterator

from runner.checks.base import CheckContext, check, most_common, node_check, ok, used_gpus, warning
from runner.core.errors import Finding, Level
from runner.core.spec import Node, Spec
from runner.core.wire.facts import Facts, Gpu, GpuHealth, GpuProcess
from runner.core.wire.text import counted, format_ranges, format_size

OLDEST_DRIVER = {13: 580, 12: 525, 11: 450}
"""The oldest driver branch for all of a CUDA major version: NVIDIA's CUDA Compatibility, table 1
(docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html)."""

RESET = "reset it (nvidia-smi --gpu-reset -i GPU there, as root, while it is idle) or reboot it"


@check(70, at_launch=True)
def gpus(context: CheckContext) -> Iterator[Finding]:
    models = {gpu.name for _, facts in context.answering for gpu in facts.gpus if gpu.name}
    for node, facts in context.ready:
        yield from context.unmet("gpus", node) or _gpus_of(node, facts)
    if len(models) > 1:
        message = f"{' and '.join(sorted(models))}: the slowest sets the pace"
        yield warning("", message, "leave nodes out with cluster.only or cluster.exclude")


def _gpus_of(node: Node, facts: Facts) -> Iterator[Finding]:
    used = used_gpus(node, facts)
    names = ", ".join(sorted({gpu.name or "?" for gpu in used}))
    no_reason = facts.gpu_source in ("none", "nvml", "")
    none_text = "none" if no_reason else f"none: {facts.gpu_source}"
    yield ok(node.name, f"{len(used)} {names}" if used else none_text)
    for gpu in used:
        if gpu.processes:
            users = ", ".join(_process_text(process) for process in gpu.processes)
            hint = f"wait, ask the user, or choose other GPUs: cluster.nodes.{node.name}.gpus"
            yield warning(node.name, f"GPU {gpu.index} is in use: {users}", hint)


def _process_text(process: GpuProcess) -> str:
    memory = f", {format_size(process.memory)}" if process.memory else ""
    command = f" {process.command}" if process.command else ""
    return f"process {process.pid}{command} of {process.user or 'unknown'}{memory}"


@check(80, at_launch=True)
def driver(context: CheckContext) -> Iterator[Finding]:
    """Report an error where torch cannot use the driver; warn where most nodes have another."""
    common = most_common(f.driver.version for _, f in context.ready if f.driver.version)
    for node, facts in context.ready:
        version = facts.driver.version
        if "driver/library version mismatch" in facts.gpu_source.lower():
            message = f"the driver was updated under the running kernel ({facts.gpu_source})"
            yield warning(node.name, message, "reboot it: until then it has no usable GPUs")
        if not version:
            continue
        if used_gpus(node, facts) and (finding := _too_old(context.spec, node, facts)):
            yield finding
        elif version != common:
            choice = f"driver {version}, most have {common}: NCCL may choose other transports there"
            yield warning(node.name, choice, "install the same driver on every node")
        else:
            cuda = f", CUDA {facts.driver.cuda}" if facts.driver.cuda else ""
            yield ok(node.name, f"{version}{cuda}")


def _too_old(spec: Spec, node: Node, facts: Facts) -> Finding | None:
    """Judge a driver of an older CUDA major version than torch's; a minor one does not matter."""
    needed = _major(facts.python.torch_cuda)
    branch = _major(facts.driver.version)
    known = (cuda for cuda, oldest in OLDEST_DRIVER.items() if branch >= oldest)
    supported = _major(facts.driver.cuda) or max(known, default=0)
    if not needed or not supported or needed <= supported:
        return None
    message = (
        f"driver {facts.driver.version} supports CUDA {facts.driver.cuda or supported}, "
        f"torch {facts.python.torch} needs CUDA {facts.python.torch_cuda}"
    )
    oldest = OLDEST_DRIVER.get(needed)
    cure = f"driver {oldest} or newer" if oldest else "a newer driver"
    hint = (
        f"install {cure} on that host, or a torch built for CUDA {supported}\n"
        "or NVIDIA's cuda-compat package, with LD_LIBRARY_PATH in cluster.env"
    )
    path = "LD_LIBRARY_PATH"  # NVIDIA's cuda-compat may be on it
    sets_path = path in spec.env_of(node) or any(path in text for text in spec.setup_of(node))
    is_doubtful = sets_path or spec.cluster.backend == "gloo"
    return Finding(Level.WARNING if is_doubtful else Level.ERROR, node.name, message, hint)


def _major(version: str) -> int:
    head = version.partition(".")[0]
    return int(head) if re.fullmatch("[0-9]{1,4}", head) else 0


@node_check(90, at_launch=True)
def health(_: Spec, node: Node, facts: Facts) -> Iterator[Finding]:
    """Report an error for a GPU that cannot work; warn of one that may fail soon."""
    used = used_gpus(node, facts)
    ills: dict[tuple[Level, str, str], list[int]] = {}
    for gpu in used:
        for ill in _ills(gpu, node.name):
            ills.setdefault(ill, []).append(gpu.index)
    for (level, message, hint), indices in ills.items():
        cure = hint.replace("-i GPU", f"-i {','.join(map(str, indices))}")
        yield Finding(level, node.name, f"{format_ranges(indices, 'GPU')}: {message}", cure)
    measured = [gpu.index for gpu in used if gpu.health]
    if measured and not ills:
        yield ok(node.name, f"{format_ranges(measured, 'GPU')}: healthy")


def _ills(gpu: Gpu, node: str) -> Iterator[tuple[Level, str, str]]:
    state = gpu.health or GpuHealth()
    leave = f"leave it out: cluster.nodes.{node}.gpus=[...]"
    failure = gpu.error or state.error
    if "permission" in failure.lower():
        yield Level.ERROR, f"no permission to use it ({failure})", leave
    elif "reset" in failure.lower():
        yield Level.ERROR, f"the driver asks for a reset ({failure})", f"{RESET}; or {leave}"
    elif failure:
        message = f"no answer to the driver ({failure}); fallen off the bus (Xid 79)?"
        yield Level.ERROR, message, f"dmesg | grep Xid, there; reboot it, or {leave}"
    if state.volatile:
        errors = counted(state.volatile, "uncorrected memory error")
        yield Level.WARNING, f"{errors} since the driver was loaded; a run there may die", RESET
    if state.repair_failed:
        message = "bad memory could not be remapped: the GPU has to be replaced"
        yield Level.WARNING, message, "leave it out and return it (nvidia-smi -q -d ROW_REMAPPER)"
    if state.repair_pending:
        yield Level.WARNING, "bad memory is remapped at the next reset", RESET
