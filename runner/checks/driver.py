"""NVIDIA's driver: the same version everywhere, and new enough for torch's CUDA."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from runner.checks.context import CheckContext, most_common, used_gpus
from runner.core.model.facts import Facts
from runner.core.model.finding import Finding, Level
from runner.core.model.spec import Node, Spec

OLDEST_DRIVER = {13: 580, 12: 525, 11: 450}
"""The oldest driver branch for all of a CUDA major version: NVIDIA's CUDA Compatibility, table 1
(docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html)."""

MISMATCH = "driver/library version mismatch"


def driver(context: CheckContext) -> Iterator[Finding]:
    """Report an error where torch cannot use the driver; warn where most nodes have another."""
    drivers = {node.name: facts.driver for node, facts in context.ready if facts.driver.version}
    common = most_common({name: info.version for name, info in drivers.items()})
    for node, facts in context.ready:
        name, version = node.name, facts.driver.version
        if MISMATCH in facts.gpu_source.lower():
            message = f"the driver was updated under the running kernel ({facts.gpu_source})"
            yield Finding(
                Level.WARNING, name, message, "reboot it: until then it has no usable GPUs"
            )
        if not version:
            continue
        if used_gpus(node, facts) and (finding := _too_old_finding(name, facts)):
            is_doubtful = context.spec.backend == "gloo" or _sets_library_path(context.spec, node)
            yield replace(finding, level=Level.WARNING) if is_doubtful else finding
        elif version != common:
            message = (
                f"driver {version}, most have {common}: NCCL may choose other transports there"
            )
            yield Finding(Level.WARNING, name, message, "install the same driver on every node")
        else:
            cuda = f", CUDA {facts.driver.cuda}" if facts.driver.cuda else ""
            yield Finding(Level.OK, name, f"{version}{cuda}")


def _sets_library_path(spec: Spec, node: Node) -> bool:
    """Return whether LD_LIBRARY_PATH is set: NVIDIA's cuda-compat may be on it."""
    name = "LD_LIBRARY_PATH"
    return name in spec.env_of(node) or any(name in line for line in spec.setup)


def _too_old_finding(name: str, facts: Facts) -> Finding | None:
    """Return an error for a driver of an older CUDA major version; a minor one does not matter."""
    needed, supported = _major(facts.python.torch_cuda), _supported_cuda(facts)
    if not needed or not supported or needed <= supported:
        return None
    supported_text = f"CUDA {facts.driver.cuda}" if facts.driver.cuda else f"CUDA {supported}"
    message = (
        f"driver {facts.driver.version} supports {supported_text}, torch {facts.python.torch} "
        f"needs CUDA {facts.python.torch_cuda}"
    )
    cure = (
        f"driver {OLDEST_DRIVER[needed]} or newer" if needed in OLDEST_DRIVER else "a newer driver"
    )
    hint = (
        f"install {cure} on that host, or a torch built for CUDA {supported}\n"
        "or NVIDIA's cuda-compat package, with LD_LIBRARY_PATH in cluster.env"
    )
    return Finding(Level.ERROR, name, message, hint)


def _supported_cuda(facts: Facts) -> int:
    """Return the newest CUDA major version that the driver runs; 0 if unknown."""
    reported, branch = _major(facts.driver.cuda), _major(facts.driver.version)
    return reported or max(
        (cuda for cuda, oldest in OLDEST_DRIVER.items() if branch >= oldest), default=0
    )


def _major(version: str) -> int:
    head = version.partition(".")[0]
    return int(head) if head.isdigit() else 0
