"""Checks of what a run starts on a host: the container, and the task's interpreter with torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from runner.checks.base import CheckContext, check, error, most_common, ok, used_gpus, warning
from runner.core.errors import Finding, Level
from runner.core.planning.container import awaits_image
from runner.core.planning.readiness import needs_python, without_torch
from runner.core.shell import line

DEFAULT_SHM_BYTES = 64 << 20  # what docker and podman give


@check(25, at_launch=True)
def container(context: CheckContext) -> Iterator[Finding]:
    """Report an error where engine or image cannot be used; warn of what a large training lacks."""
    spec = context.spec.container
    for node, facts in context.ready if spec else ():
        if errors := context.unmet("container", node):
            level = Level.WARNING if awaits_image(context.spec, facts) else Level.ERROR
            yield from (replace(each, level=level) for each in errors)
            continue
        found = facts.container
        where = f"{found.program}, {spec.image}" if spec.engine else " ".join(spec.prefix)
        yield ok(node.name, where)
        ranks = node.nproc_per_node or len(used_gpus(node, facts))
        shm_bytes = found.shm_bytes
        if ranks > 1 and not context.spec.task.is_plain and 0 < shm_bytes <= DEFAULT_SHM_BYTES:
            message = (
                f"container.shm_size: /dev/shm in the container has {shm_bytes >> 20} MiB for "
                f"{ranks} ranks: when it is full, data loader workers and NCCL die of SIGBUS"
            )
            yield warning(node.name, message, "set container.shm_size=16g")


@check(30, at_launch=True)
def python(context: CheckContext) -> Iterator[Finding]:
    if not needs_python(context.spec.task):
        return
    for node, facts in context.ready:
        yield from context.unmet("python", node)
        if facts.awaits_environment:
            yield ok(node.name, "environment not made yet: a launch makes it")
    pythons = {
        node.name: facts.python
        for node, facts in context.ready
        if not (facts.python.error or facts.awaits_environment)
    }
    common = most_common(info.version for info in pythons.values())
    for name, info in pythons.items():
        if _minor_version(info.version) == _minor_version(common):
            yield ok(name, f"{info.version}, {info.executable}")
        else:
            other = f"Python {info.version}, most have {common}"
            hint = "set cluster.python, for all or in cluster.setup, to the same version everywhere"
            yield warning(name, f"{other}: pickles may not be readable by both", hint)


def _minor_version(version: str) -> list[str]:
    return version.partition(",")[0].partition("+")[0].split(".")[:2]


@check(40, at_launch=True)
def torch(context: CheckContext) -> Iterator[Finding]:
    """Report an error where torch is missing or of another minor version; else warn of differences.

    A program that torch does not launch may need no torch: then its lack is a warning.
    """
    if not needs_python(context.spec.task):  # it is unknown which Python the task uses, if any
        return
    for node, facts in context.ready:
        errors = context.unmet("torch", node)
        yield from errors
        for problem in () if errors else without_torch(node, facts):
            yield replace(Finding.from_problem(problem), level=Level.WARNING)
    pythons = {node.name: facts.python for node, facts in context.ready if facts.python.torch}
    versions = {
        name: f"{info.torch}, CUDA {info.torch_cuda}" if info.torch_cuda else info.torch
        for name, info in pythons.items()
    }
    common = most_common(versions.values())
    for name, info in pythons.items():
        own = versions[name]
        if own == common:
            yield ok(name, own)
            continue
        wanted = f"torch=={common.partition(',')[0].partition('+')[0]}"
        install = line([info.executable, "-m", "pip", "install", wanted])
        hint = f"install the same version on every node: {install}"
        if context.spec.container:
            hint = f"use an image with the same version on every node: one with {wanted}"
        message = f"torch {own}, most have {common}"
        if _minor_version(own) != _minor_version(common):
            yield error(name, f"{message}: they cannot work together", hint)
        else:
            yield warning(name, message, hint)


@check(45)
def imports(context: CheckContext) -> Iterator[Finding]:
    """Warn where the interpreter lacks what the first lines of the program import."""
    for node, facts in context.ready:
        if names := facts.python.missing:
            message = (
                f"{facts.python.executable} has no {', '.join(names)}, which the program imports"
            )
            hint = f"there: {line([facts.python.executable, '-m', 'pip', 'install', *names])}"
            yield warning(node.name, f"{message}", f"{hint}; or see cluster.environment")


@check(47)
def paths(context: CheckContext) -> Iterator[Finding]:
    """Warn where a path among the arguments of the program is not there."""
    for node, facts in context.ready:
        if facts.missing_paths:
            message = f"an argument names what is not there: {', '.join(facts.missing_paths)}"
            yield warning(node.name, message, "copy it there, unless the program makes it")
