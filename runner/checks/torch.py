"""Torch, CUDA and NCCL versions: different ones cannot talk to each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from runner.checks.context import CheckContext, most_common
from runner.core.model.facts import Interpreter
from runner.core.model.finding import Finding, Level
from runner.core.model.packages import NCCL_PACKAGES
from runner.core.planning.readiness import needs_python, without_torch

INSTALL_HINT = "install the same version on every node: {python} -m pip install {wanted}"


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
        part: most_common(
            {
                name: node_versions[part]
                for name, node_versions in versions.items()
                if node_versions[part]
            }
        )
        for part in ("torch", "CUDA", "NCCL")
    }
    for name, info in pythons.items():
        own = versions[name]
        differing = [part for part in own if own[part] and own[part] != common[part]]
        if not differing:
            yield Finding(Level.OK, name, _versions_text(own).partition(" ")[2])
            continue
        wanted = f"torch=={common['torch'].partition('+')[0]}"
        if differing == ["NCCL"]:
            wanted = f"{_nccl_distribution(info)}=={common['NCCL']}"
        hint = INSTALL_HINT.format(python=info.executable, wanted=wanted)
        others = _versions_text({part: common[part] for part in differing})
        others = others.partition(" ")[2] if differing[0] == "torch" else others
        message = f"{_versions_text({part: own[part] for part in differing})}, most have {others}"
        is_incompatible = _minor_version(own["torch"]) != _minor_version(common["torch"])
        message += ": they cannot work together" if is_incompatible else ""
        message += ": NCCL refuses a peer of another version" if differing == ["NCCL"] else ""
        yield Finding(Level.ERROR if is_incompatible else Level.WARNING, name, message, hint)


def _versions(info: Interpreter) -> dict[str, str]:
    """Return the versions that have to be equal; "" for an unknown one."""
    nccl = (info.packages or {}).get(_nccl_distribution(info), "")
    return {"torch": info.torch, "CUDA": info.torch_cuda, "NCCL": nccl}


def _nccl_distribution(info: Interpreter) -> str:
    """Return the distribution that holds NCCL; "" for none or several."""
    names = [name for name in NCCL_PACKAGES if name in (info.packages or {})]
    return names[0] if len(names) == 1 else ""


def _versions_text(parts: Mapping[str, str]) -> str:
    return ", ".join(f"{part} {version}" for part, version in parts.items() if version)


def _minor_version(version: str) -> list[str]:
    return version.partition("+")[0].split(".")[:2]
