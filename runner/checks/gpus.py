"""Checks of the GPUs that a run would use: their number and model, their driver, their health."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from runner.checks.base import CheckContext, check, error, most_common, ok, used_gpus, warning
from runner.core.model.facts import Facts, Gpu, GpuProcess
from runner.core.model.hardware import GpuHealth, Xid
from runner.core.model.results import Finding, Level
from runner.core.text import counted, format_age, format_ranges, format_size

OLDEST_DRIVER = {13: 580, 12: 525, 11: 450}
"""The oldest driver branch for all of a CUDA major version: NVIDIA's CUDA Compatibility, table 1
(docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html)."""

MISMATCH = "driver/library version mismatch"

THERMAL_BITS, HARDWARE_BIT = 0x20 | 0x40, 0x08
SLOWDOWNS = {
    0x80: "the power supply asks for it (power brake)",
    0x40: "it is too hot (hardware)",
    0x20: "it is too hot (driver)",
    0x08: "its hardware slows it down (heat or power)",
}
"""Bits of nvml.h's nvmlClocksEventReason; idle, chosen clocks and the power cap are normal.
The last is set along with the first two, and alone by older drivers."""

XID_CATALOGUE = "https://docs.nvidia.com/deploy/xid-errors/"

_RESET = "reset it (nvidia-smi --gpu-reset -i GPU, as root, while it is not in use) or reboot"
_REPLACE = _RESET + "; if it recurs, replace the GPU or its board"


@dataclass(frozen=True)
class XidInfo:
    """An error of NVIDIA's "Xid Errors"; of memory, of its "GPU Memory Error Management"."""

    meaning: str
    remedy: str  # `-i GPU` stands for its index
    caused_by_program: bool = False  # usually, so that the GPU is healthy


XIDS: dict[int, XidInfo] = {
    13: XidInfo("an illegal access or instruction of a kernel", "", caused_by_program=True),
    31: XidInfo("a program read or wrote memory that is not its own", "", caused_by_program=True),
    43: XidInfo("a program's kernel failed, and it was stopped", "", caused_by_program=True),
    45: XidInfo(
        "a program was cleaned up after an earlier error, or killed", "", caused_by_program=True
    ),
    48: XidInfo("an uncorrectable memory error", _RESET),
    61: XidInfo("its microcontroller had an error", _RESET),
    62: XidInfo("its microcontroller halted", _RESET),
    63: XidInfo("bad memory is replaced at the next reset", _RESET),
    64: XidInfo("bad memory could not be replaced", _REPLACE),
    74: XidInfo("an error on NVLink", _RESET + "; if it recurs, have link and board inspected"),
    79: XidInfo(
        "it has fallen off the bus",
        "reboot; if it recurs, check its power, cooling and slot",
    ),
    92: XidInfo("its memory had many corrected errors", "have it tested (dcgmi diag -r 3)"),
    94: XidInfo("a memory error, contained to one program", _RESET),
    95: XidInfo("a memory error, not contained to one program", _RESET),
    119: XidInfo("its firmware (GSP) does not answer", _RESET + "; a newer driver may cure it"),
    120: XidInfo("its firmware (GSP) failed", _RESET + "; a newer driver may cure it"),
}

FindingText = tuple[Level, str, str]  # the level, the message about a GPU, and the hint


@check(70, at_launch=True)
def gpus(context: CheckContext) -> Iterator[Finding]:
    """Report an error where GPUs are missing; warn about mixed models and GPUs in use."""
    models = {gpu.name for _, facts in context.answering for gpu in facts.gpus if gpu.name}
    for node, facts in context.ready:
        if errors := context.unmet("gpus", node):
            yield from errors
            continue
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
    if len(models) > 1:
        message = f"{' and '.join(sorted(models))}: the slowest sets the pace"
        yield warning("", message, "leave nodes out with cluster.only or cluster.exclude")


def _process_text(process: GpuProcess) -> str:
    memory = f", {format_size(process.memory)}" if process.memory else ""
    command = f" {process.command}" if process.command else ""
    return f"process {process.pid}{command} of {process.user or 'unknown'}{memory}"


@check(80, at_launch=True)
def driver(context: CheckContext) -> Iterator[Finding]:
    """Report an error where torch cannot use the driver; warn where most nodes have another."""
    versions = (facts.driver.version for _, facts in context.ready)
    common = most_common(filter(None, versions))
    for node, facts in context.ready:
        name, version = node.name, facts.driver.version
        if MISMATCH in facts.gpu_source.lower():
            message = f"the driver was updated under the running kernel ({facts.gpu_source})"
            yield warning(name, message, "reboot it: until then it has no usable GPUs")
        if not version:
            continue
        if used_gpus(node, facts) and (finding := _too_old_finding(name, facts)):
            spec = context.spec
            path = "LD_LIBRARY_PATH"  # NVIDIA's cuda-compat may be on it
            sets_path = path in spec.env_of(node) or any(
                path in line for line in spec.setup_of(node)
            )
            is_doubtful = spec.cluster.backend == "gloo" or sets_path
            yield replace(finding, level=Level.WARNING) if is_doubtful else finding
        elif version != common:
            choice = f"driver {version}, most have {common}: NCCL may choose other transports there"
            yield warning(name, choice, "install the same driver on every node")
        else:
            cuda = f", CUDA {facts.driver.cuda}" if facts.driver.cuda else ""
            yield ok(name, f"{version}{cuda}")


def _too_old_finding(name: str, facts: Facts) -> Finding | None:
    """Return an error for a driver of an older CUDA major version; a minor one does not matter."""
    needed, branch = _major(facts.python.torch_cuda), _major(facts.driver.version)
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
    return error(name, message, hint)


def _major(version: str) -> int:
    head = version.partition(".")[0]
    return int(head) if head.isdigit() else 0


@check(90, at_launch=True)
def health(context: CheckContext) -> Iterator[Finding]:
    """Report an error for a GPU that cannot work; warn of one that may fail soon."""
    for node, facts in context.ready:
        used = used_gpus(node, facts)
        indices_by_text: dict[FindingText, list[int]] = {}
        for gpu in used:
            for text in _gpu_findings(gpu, facts.xids, node.name):
                indices_by_text.setdefault(text, []).append(gpu.index)
        for (level, message, hint), indices in indices_by_text.items():
            cure = hint.replace("-i GPU", f"-i {','.join(map(str, indices))}")
            yield Finding(level, node.name, f"{format_ranges(indices, 'GPU')}: {message}", cure)
        yield from _unplaced_xid_findings(node.name, facts)
        yield from _mixed_mig_findings(node.name, used)
        measured = [gpu for gpu in used if gpu.health]
        if measured and all(level is Level.OK for level, _, _ in indices_by_text):
            indices = [gpu.index for gpu in measured]
            yield ok(node.name, f"{format_ranges(indices, 'GPU')}: healthy")


def _gpu_findings(gpu: Gpu, logged_xids: Iterable[Xid], node: str) -> Iterator[FindingText]:
    if failure := gpu.error or (gpu.health.error if gpu.health else ""):
        yield _driver_finding(failure, node)
    if gpu.health:
        yield from _memory_findings(gpu.health)
        yield from _speed_findings(gpu.health)
        yield from _mig_findings(gpu.health, node)
        own_xids = (xid for xid in logged_xids if xid.bus == gpu.health.bus)
        yield from map(_xid_finding, own_xids)


def _driver_finding(failure: str, node: str) -> FindingText:
    leave = f"leave it out: cluster.nodes.{node}.gpus=[...]"
    if "permission" in failure.lower():
        return Level.ERROR, f"no permission to use it ({failure})", leave
    if "reset" in failure.lower():
        hint = f"nvidia-smi --gpu-reset -i GPU there, as root, or reboot it; or {leave}"
        return Level.ERROR, f"the driver asks for a reset ({failure})", hint
    message = f"no answer to the driver ({failure}); fallen off the bus (Xid 79)?"
    return Level.ERROR, message, f"dmesg | grep Xid, there; reboot it, or {leave}"


def _memory_findings(state: GpuHealth) -> Iterator[FindingText]:
    reset = "nvidia-smi --gpu-reset -i GPU there, as root, while it is idle; or reboot it"
    if state.volatile:
        errors = counted(state.volatile, "uncorrected memory error")
        message = f"{errors} since the driver was loaded; a run there may die"
        yield Level.WARNING, message, reset
    elif state.aggregate:
        errors = counted(state.aggregate, "uncorrected memory error")
        message = f"{errors} in its life, none since the driver was loaded"
        yield Level.WARNING, message, "nvidia-smi -q -d ECC -i GPU, there; watch it"
    if state.repair_failed:
        message = "bad memory could not be remapped: the GPU has to be replaced"
        yield Level.WARNING, message, "leave it out and return it (nvidia-smi -q -d ROW_REMAPPER)"
    if state.repair_pending:
        yield Level.WARNING, "bad memory is remapped at the next reset", reset


def _speed_findings(state: GpuHealth) -> Iterator[FindingText]:
    bits = state.throttle_reasons or 0
    if bits & ~HARDWARE_BIT & (THERMAL_BITS | 0x80):
        bits &= ~HARDWARE_BIT
    reasons = [words for bit, words in SLOWDOWNS.items() if bits & bit]
    if reasons:
        hint = "check fans, room and power; nvidia-smi -q -d PERFORMANCE,TEMPERATURE there"
        yield Level.WARNING, f"slowed down: {', '.join(reasons)}", hint
    if state.pcie_width and state.pcie_width_max and state.pcie_width < state.pcie_width_max:
        lanes = f"{state.pcie_width} of {state.pcie_width_max} PCIe lanes"
        message = f"{lanes} in use; copies to and from it are slow"
        hint = "see whether it sits firmly in its slot, and how many lanes the slot has"
        yield Level.WARNING, message, hint
    if state.persistent is False:
        message = "persistence mode is off; each start takes seconds longer"
        yield Level.WARNING, message, "nvidia-smi -pm 1 there, as root; or run nvidia-persistenced"


def _mig_findings(state: GpuHealth, node: str) -> Iterator[FindingText]:
    if state.mig and state.instances == 0:
        hint = (
            f"nvidia-smi mig -i GPU -cgi PROFILE -C there, as root (-lgip lists them); or "
            f"nvidia-smi -i GPU -mig 0\n"
            f"or leave it out: cluster.nodes.{node}.gpus=[...]"
        )
        yield Level.ERROR, "in MIG mode, but without an instance that a program could use", hint
    elif state.mig and state.instances:
        parts = counted(state.instances, "instance")
        yield Level.OK, f"in MIG mode with {parts}; each rank gets one", ""


def _xid_finding(xid: Xid) -> FindingText:
    times = "once" if xid.count == 1 else f"{xid.count} times"
    when = f"{times} since the boot, {'' if xid.count == 1 else 'last '}{format_age(xid.ago_s)} ago"
    info = XIDS.get(xid.code)
    if info and info.caused_by_program:
        return Level.OK, f"Xid {xid.code}, {when}: {info.meaning}", ""
    means = info.meaning if info else xid.text or "unknown"
    cure = info.remedy if info else f"look it up: {XID_CATALOGUE}"
    return Level.WARNING, f"Xid {xid.code}, {when}: {means}", cure


def _unplaced_xid_findings(node: str, facts: Facts) -> Iterator[Finding]:
    """Report errors of a GPU that no longer reports its bus; GPUs left out do not count."""
    known_buses = {gpu.health.bus for gpu in facts.gpus if gpu.health}
    if facts.gpus and "" not in known_buses and all(gpu.health for gpu in facts.gpus):
        return
    for xid in facts.xids:
        if xid.bus not in known_buses:
            level, message, hint = _xid_finding(xid)
            yield Finding(level, node, f"the GPU at {xid.bus}: {message}", hint)


def _mixed_mig_findings(node: str, used: list[Gpu]) -> Iterator[Finding]:
    divided = [gpu.index for gpu in used if gpu.health and gpu.health.mig]
    undivided = [gpu.index for gpu in used if gpu.health and gpu.health.mig is False]
    if divided and undivided:
        with_mig, without = format_ranges(divided, "GPU"), format_ranges(undivided, "GPU")
        message = f"{with_mig} in MIG mode, {without} not: CUDA shows only one kind"
        hint = f"choose GPUs of one kind: cluster.nodes.{node}.gpus={divided} or {undivided}"
        yield warning(node, message, hint)
