"""Checks of what a run starts on a host: the container, and the task's interpreter with torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from runner.checks.base import CheckContext, check, error, most_common, ok, used_gpus, warning
from runner.core.planning.container import awaits_image
from runner.core.planning.readiness import needs_python, without_torch
from runner.core.results import Finding, Level
from runner.core.wire.facts import Interpreter

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
        if facts.system.infiniband and not found.has_verbs:
            message = "this host has InfiniBand, and the image no libibverbs: NCCL uses sockets"
            hint = "add it to the image, in Debian's: apt-get install libibverbs1 ibverbs-providers"
            yield warning(node.name, message, hint)


@check(30, at_launch=True)
def python(context: CheckContext) -> Iterator[Finding]:
    """Report an error where there is none; warn of other versions and other login environments."""
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
    for node, facts in context.ready:
        own = facts.python
        login = facts.login_python
        has_less = own.torch and not login.torch
        if own.prefix and login.prefix and own.prefix != login.prefix and not has_less:
            found = f"{node.python} at {login.executable} ({_python_text(login)})"
            gets = f"the task gets {own.executable} ({_python_text(own)})"
            hint = f"to use that one: cluster.python={login.executable}"
            yield warning(node.name, f"a login shell finds {found}, {gets}", hint)


def _python_text(info: Interpreter) -> str:
    return f"Python {info.version}, {f'torch {info.torch}' if info.torch else 'no torch'}"


def _minor_version(version: str) -> list[str]:
    return version.partition("+")[0].split(".")[:2]


@check(40, at_launch=True)
def torch(context: CheckContext) -> Iterator[Finding]:
    """Report an error where torch is missing or of another minor version; else warn of differences.

    A program that torch does not launch may need no torch: then its lack is a warning. The NCCL
    that torch will load is not known for sure, as another package may have installed the one found.
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
        name: {
            "torch": info.torch,
            "CUDA": info.torch_cuda,
            "NCCL": "".join(info.nccl.values()) if len(info.nccl) == 1 else "",  # else unknown
        }
        for name, info in pythons.items()
    }
    common = {
        part: most_common(own[part] for own in versions.values() if own[part])
        for part in ("torch", "CUDA", "NCCL")
    }
    for name, info in pythons.items():
        own = versions[name]
        differing = [part for part in own if own[part] and own[part] != common[part]]
        if not differing:
            yield ok(name, _text(own).removeprefix("torch "))
            continue
        wanted = f"torch=={common['torch'].partition('+')[0]}"
        if differing == ["NCCL"]:
            wanted = f"{next(iter(info.nccl))}=={common['NCCL']}"
        hint = f"install the same version on every node: {info.executable} -m pip install {wanted}"
        if context.spec.container:
            hint = f"use an image with the same version on every node: one with {wanted}"
        others = _text({part: common[part] for part in differing}).removeprefix("torch ")
        message = f"{_text({part: own[part] for part in differing})}, most have {others}"
        if differing == ["NCCL"]:
            message += ": NCCL refuses a peer of another version"
        if _minor_version(own["torch"]) != _minor_version(common["torch"]):
            yield error(name, f"{message}: they cannot work together", hint)
        else:
            yield warning(name, message, hint)


def _text(parts: Mapping[str, str]) -> str:
    return ", ".join(f"{part} {version}" for part, version in parts.items() if version)
