"""Whether the GPUs a run would use are well, as their driver and the kernel's log tell."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from runner.checks.context import Case, used_gpus
from runner.core.model.facts import Facts, Gpu
from runner.core.model.finding import Finding, Level
from runner.core.model.hardware import GpuHealth, Xid
from runner.core.outcome import xids

HOT, SLOW = 0x20 | 0x40, 0x08
SLOWDOWNS = {
    0x80: "the power supply asks for it (power brake)",
    0x40: "it is too hot (hardware)",
    0x20: "it is too hot (driver)",
    0x08: "its hardware slows it down (heat or power)",
}
"""Bits of nvml.h's nvmlClocksEventReason; idle, chosen clocks and the power cap are as should be.
The last is set along with the first two, and alone by older drivers."""

Said = tuple[Level, str, str]
"""How bad it is, what is said of a GPU, and the hint."""


def health(case: Case) -> Iterator[Finding]:
    """An error for a GPU that cannot work, a warning for one that may not for long."""
    for node, facts in case.ready:
        used = used_gpus(node, facts)
        found: dict[Said, list[int]] = {}
        for gpu in used:
            for said in _of(gpu, facts.xids, node.name):
                found.setdefault(said, []).append(gpu.index)
        for (level, what, hint), indices in found.items():
            yield Finding(level, node.name, f"{_named(indices)}: {what}", hint)
        yield from _strangers(node.name, facts)
        yield from _mixed(node.name, used)
        asked = [gpu for gpu in used if gpu.health]
        if asked and all(level is Level.FINE for level, _, _ in found):
            yield Finding(Level.FINE, node.name, f"{_named([gpu.index for gpu in asked])}: well")


def _of(gpu: Gpu, told: Iterable[Xid], node: str) -> Iterator[Said]:
    error = gpu.error or (gpu.health.trouble if gpu.health else "")
    if error:
        yield _lost(error, gpu.index, node)
    if gpu.health:
        yield from _memory(gpu.health, gpu.index)
        yield from _speed(gpu.health)
        yield from _divided(gpu.health, gpu.index, node)
        yield from (_logged(xid, str(gpu.index)) for xid in told if xid.bus == gpu.health.bus)


def _lost(error: str, index: int, node: str) -> Said:
    leave = f"leave it out: cluster.nodes.{node}.gpus=[...]"
    if "permission" in error.lower():
        return Level.ERROR, f"not ours to use ({error})", leave
    if "reset" in error.lower():
        hint = f"nvidia-smi --gpu-reset -i {index} there, as root, or reboot it; or {leave}"
        return Level.ERROR, f"to be reset, says the driver ({error})", hint
    what = f"no answer to the driver ({error}); fallen off the bus (Xid 79)?"
    return Level.ERROR, what, f"dmesg | grep Xid, there; reboot it, or {leave}"


def _memory(told: GpuHealth, index: int) -> Iterator[Said]:
    reset = f"nvidia-smi --gpu-reset -i {index} there, as root, nobody using it; or reboot it"
    if told.volatile:
        what = f"{_errors(told.volatile)} since the driver was loaded; a run there may die"
        yield Level.WARNING, what, reset
    elif told.aggregate:
        what = f"{_errors(told.aggregate)} in its life, none since the driver was loaded"
        yield Level.WARNING, what, f"nvidia-smi -q -d ECC -i {index}, there; watch it"
    if told.repair_failed:
        what = "bad memory could not be replaced; the GPU is to be replaced"
        yield Level.WARNING, what, "leave it out, and hand it in (nvidia-smi -q -d ROW_REMAPPER)"
    if told.repair_pending:
        yield Level.WARNING, "bad memory waits for a reset to be replaced", reset


def _errors(count: int) -> str:
    return f"{count} uncorrected memory error{'' if count == 1 else 's'}"


def _speed(told: GpuHealth) -> Iterator[Said]:
    bits = told.clocks or 0
    if bits & ~SLOW & (HOT | 0x80):
        bits &= ~SLOW
    reasons = [words for bit, words in SLOWDOWNS.items() if bits & bit]
    if reasons:
        hint = "look at fans, room and power; nvidia-smi -q -d PERFORMANCE,TEMPERATURE there"
        yield Level.WARNING, f"slowed down: {', '.join(reasons)}", hint
    if told.width and told.width_max and told.width < told.width_max:
        what = f"{told.width} of {told.width_max} PCIe lanes in use; copies from and to it are slow"
        yield Level.WARNING, what, "see whether it sits well in its slot, and what the slot has"
    if told.persistent is False:
        what = "persistence mode is off; each start takes seconds longer"
        yield Level.WARNING, what, "nvidia-smi -pm 1 there, as root; or run nvidia-persistenced"


def _divided(told: GpuHealth, index: int, node: str) -> Iterator[Said]:
    if told.mig and told.instances == 0:
        hint = (
            f"nvidia-smi mig -i {index} -cgi PROFILE -C there, as root (-lgip lists them); or "
            f"nvidia-smi -i {index} -mig 0\n"
            f"or leave it out: cluster.nodes.{node}.gpus=[...]"
        )
        yield Level.ERROR, "divided (MIG), but without an instance that a program could use", hint
    elif told.mig and told.instances:
        parts = f"{told.instances} instance{'' if told.instances == 1 else 's'}"
        yield Level.FINE, f"divided (MIG) into {parts}, and a rank gets one", ""


def _logged(xid: Xid, index: str) -> Said:
    times = "once" if xid.count == 1 else f"{xid.count} times"
    when = f"{times} since the boot, {'' if xid.count == 1 else 'last '}{_ago(xid.ago_s)} ago"
    known = xids.KNOWN.get(xid.code)
    if known and known.of_program:
        return Level.FINE, f"Xid {xid.code}, {when}: {known.means}", ""
    means = known.means if known else xid.text or "no words of it"
    cure = known.cure if known else f"look it up: {xids.CATALOGUE}"
    return Level.WARNING, f"Xid {xid.code}, {when}: {means}", cure.format(gpu=index)


def _ago(seconds: float) -> str:
    units = ((86400, "d"), (3600, "h"), (60, "min"))
    return next((f"{seconds // n:.0f} {unit}" for n, unit in units if seconds >= n), "a moment")


def _strangers(node: str, facts: Facts) -> Iterator[Finding]:
    """Errors of a GPU that no longer tells where it is; those of GPUs left out are not ours."""
    there = {gpu.health.bus for gpu in facts.gpus if gpu.health}
    if facts.gpus and "" not in there and all(gpu.health for gpu in facts.gpus):
        return
    for xid in facts.xids:
        if xid.bus not in there:
            level, what, hint = _logged(xid, "GPU")
            yield Finding(level, node, f"the GPU at {xid.bus}: {what}", hint)


def _mixed(node: str, used: list[Gpu]) -> Iterator[Finding]:
    divided = [gpu.index for gpu in used if gpu.health and gpu.health.mig]
    whole = [gpu.index for gpu in used if gpu.health and gpu.health.mig is False]
    if divided and whole:
        what = f"{_named(divided)} divided (MIG), {_named(whole)} not: CUDA shows one kind only"
        hint = f"choose those of one kind: cluster.nodes.{node}.gpus={divided} or {whole}"
        yield Finding(Level.WARNING, node, what, hint)


def _named(indices: list[int]) -> str:
    return f"GPU{'' if len(indices) == 1 else 's'} {', '.join(map(str, indices))}"
