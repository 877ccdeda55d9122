"""Checks of the task's interpreter: Python, torch and what comes with it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from runner.checks.base import CheckContext, check, error, most_common, ok, warning
from runner.core.model.facts import Interpreter
from runner.core.model.results import Finding, Level
from runner.core.planning.readiness import needs_python, without_torch


@check(30, at_launch=True)
def python(context: CheckContext) -> Iterator[Finding]:
    """Report an error where there is none; warn of other versions and other login environments."""
    if not needs_python(context.spec.task):
        return
    for node, _ in context.ready:
        yield from context.unmet("python", node)
    pythons = {node.name: facts.python for node, facts in context.ready if not facts.python.error}
    common = most_common(info.version for info in pythons.values())
    for name, info in pythons.items():
        if _minor_version(info.version) == _minor_version(common):
            yield ok(name, f"{info.version}, {info.executable}")
        else:
            other = f"Python {info.version}, most have {common}"
            hint = "set cluster.python, for all or in cluster.setup, to the same version everywhere"
            yield warning(name, f"{other}: pickles may not be readable by both", hint)
    for node, facts in context.ready:
        own, login = facts.python, facts.login_python
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
    versions = {name: _versions(info) for name, info in pythons.items()}
    common = {
        part: most_common(own[part] for own in versions.values() if own[part])
        for part in ("torch", "CUDA", "NCCL")
    }
    for name, info in pythons.items():
        own = versions[name]
        differing = [part for part in own if own[part] and own[part] != common[part]]
        if not differing:
            yield ok(name, _versions_text(own).partition(" ")[2])
            continue
        wanted = f"torch=={common['torch'].partition('+')[0]}"
        if differing == ["NCCL"]:
            wanted = f"{_nccl_distribution(info)}=={common['NCCL']}"
        hint = f"install the same version on every node: {info.executable} -m pip install {wanted}"
        if context.spec.container:
            hint = f"use an image with the same version on every node: one with {wanted}"
        others = _versions_text({part: common[part] for part in differing})
        others = others.partition(" ")[2] if differing[0] == "torch" else others
        message = f"{_versions_text({part: own[part] for part in differing})}, most have {others}"
        if differing == ["NCCL"]:
            message += ": NCCL refuses a peer of another version"
        if _minor_version(own["torch"]) != _minor_version(common["torch"]):
            yield error(name, f"{message}: they cannot work together", hint)
        else:
            yield warning(name, message, hint)


def _versions(info: Interpreter) -> dict[str, str]:
    """Return the versions that have to be equal; "" for an unknown one."""
    nccl = info.nccl.get(_nccl_distribution(info), "")
    return {"torch": info.torch, "CUDA": info.torch_cuda, "NCCL": nccl}


def _nccl_distribution(info: Interpreter) -> str:
    """Return the distribution that holds NCCL; "" for none or several."""
    return next(iter(info.nccl)) if len(info.nccl) == 1 else ""


def _versions_text(parts: Mapping[str, str]) -> str:
    return ", ".join(f"{part} {version}" for part, version in parts.items() if version)
