"""Whether NVIDIA's driver is the same everywhere, and new enough for torch's CUDA."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from runner.checks.context import Case, majority, used_gpus
from runner.core.model.facts import Facts
from runner.core.model.finding import Finding, Level
from runner.core.model.spec import Node, Spec

OLDEST = {13: 580, 12: 525, 11: 450}
"""The oldest driver branch for all of a CUDA major version: NVIDIA's CUDA Compatibility, table 1
(docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html)."""

MISMATCH = "driver/library version mismatch"


def driver(case: Case) -> Iterator[Finding]:
    """An error where torch cannot use it, a warning where it is another than most nodes have."""
    found = {node.name: facts.driver for node, facts in case.ready if facts.driver.version}
    common = majority({name: told.version for name, told in found.items()})
    for node, facts in case.ready:
        name, version = node.name, facts.driver.version
        if MISMATCH in facts.gpu_source.lower():
            what = f"the driver was updated under the running kernel ({facts.gpu_source})"
            yield Finding(Level.WARNING, name, what, "reboot it: until then it has no GPUs")
        if not version:
            continue
        if used_gpus(node, facts) and (finding := _too_old(name, facts)):
            doubtful = case.spec.backend == "gloo" or _finds_libraries(case.spec, node)
            yield replace(finding, level=Level.WARNING) if doubtful else finding
        elif version != common:
            what = f"driver {version}, most have {common}: NCCL may choose other ways there"
            yield Finding(Level.WARNING, name, what, "install the same driver on every node")
        else:
            cuda = f", CUDA {facts.driver.cuda}" if facts.driver.cuda else ""
            yield Finding(Level.FINE, name, f"{version}{cuda}")


def _finds_libraries(spec: Spec, node: Node) -> bool:
    """Whether something is said of where libraries are: NVIDIA's cuda-compat may be one."""
    name = "LD_LIBRARY_PATH"
    return name in spec.env_of(node) or any(name in line for line in spec.setup)


def _too_old(name: str, facts: Facts) -> Finding | None:
    """Within a major version of CUDA, a torch newer than the driver works."""
    wanted, supported = _major(facts.python.torch_cuda), _supported(facts)
    if not wanted or not supported or wanted <= supported:
        return None
    told = f"CUDA {facts.driver.cuda}" if facts.driver.cuda else f"CUDA {supported}"
    what = (
        f"driver {facts.driver.version} supports {told}, torch {facts.python.torch} needs "
        f"CUDA {facts.python.torch_cuda}"
    )
    oldest = f"driver {OLDEST[wanted]} or newer" if wanted in OLDEST else "a newer driver"
    hint = (
        f"install {oldest} there, or a torch built for CUDA {supported}\n"
        "or NVIDIA's cuda-compat package, with LD_LIBRARY_PATH in cluster.env"
    )
    return Finding(Level.ERROR, name, what, hint)


def _supported(facts: Facts) -> int:
    """Return the newest CUDA major version it runs, 0 when that is not known."""
    told, branch = _major(facts.driver.cuda), _major(facts.driver.version)
    return told or max((cuda for cuda, oldest in OLDEST.items() if branch >= oldest), default=0)


def _major(version: str) -> int:
    head = version.partition(".")[0]
    return int(head) if head.isdigit() else 0
