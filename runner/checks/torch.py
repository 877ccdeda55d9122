"""Whether torch is there, and the same everywhere: versions do not understand each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from runner.checks.context import Case, majority
from runner.core.model.facts import Python
from runner.core.model.finding import Finding, Level
from runner.core.model.packages import NCCL
from runner.core.planning.readiness import needs_python, needs_torch, torch_problems

HINT = "the same on every node: {python} -m pip install {wanted}"


def torch(case: Case) -> Iterator[Finding]:
    """An error where it is missing, or another minor version; else a difference is a warning.

    Without torch's launcher a program may do without torch, and then it is a warning as well.
    Which NCCL torch will load is not known for sure: another package may have brought the one that
    is there, and a torch of conda's brings its own.
    """
    if not needs_python(case.spec.task):  # whatever it uses, it is not known which
        return
    needed = needs_torch(case.spec.task)
    for node, facts in case.ready:
        for problem in torch_problems(node, facts):
            lacking = Finding.of(problem)
            yield lacking if needed else replace(lacking, level=Level.WARNING)
    found = {node.name: facts.python for node, facts in case.ready if facts.python.torch}
    parts = {name: _parts(told) for name, told in found.items()}
    common = {
        part: majority({name: each[part] for name, each in parts.items() if each[part]})
        for part in ("torch", "CUDA", "NCCL")
    }
    for name, told in found.items():
        mine = parts[name]
        differing = [part for part in mine if mine[part] and mine[part] != common[part]]
        if not differing:
            yield Finding(Level.FINE, name, _shown(mine).partition(" ")[2])
            continue
        wanted = f"torch=={common['torch'].partition('+')[0]}"
        if differing == ["NCCL"]:
            wanted = f"{_nccl(told)}=={common['NCCL']}"
        hint = HINT.format(python=told.executable, wanted=wanted)
        theirs = _shown({part: common[part] for part in differing})
        theirs = theirs.partition(" ")[2] if differing[0] == "torch" else theirs
        what = f"{_shown({part: mine[part] for part in differing})}, most have {theirs}"
        apart = _minor(mine["torch"]) != _minor(common["torch"])
        what += ": they do not understand each other" if apart else ""
        what += ": NCCL refuses a peer of another version" if differing == ["NCCL"] else ""
        yield Finding(Level.ERROR if apart else Level.WARNING, name, what, hint)


def _parts(told: Python) -> dict[str, str]:
    """Return the versions that have to be alike, "" for what is not known."""
    nccl = (told.packages or {}).get(_nccl(told), "")
    return {"torch": told.torch, "CUDA": told.torch_cuda, "NCCL": nccl}


def _nccl(told: Python) -> str:
    """Return the distribution that has NCCL, "" for none, or where leftovers make it unclear."""
    names = [name for name in NCCL if name in (told.packages or {})]
    return names[0] if len(names) == 1 else ""


def _shown(parts: Mapping[str, str]) -> str:
    return ", ".join(f"{part} {version}" for part, version in parts.items() if version)


def _minor(version: str) -> list[str]:
    return version.partition("+")[0].split(".")[:2]
