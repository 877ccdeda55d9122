"""Whether torch is there, and the same everywhere: versions do not understand each other."""

from __future__ import annotations

from collections.abc import Iterator

from runner.checks.case import Case, majority
from runner.core.finding import Finding, Level
from runner.core.readiness import torch_problems

HINT = "the same torch on every node: {python} -m pip install torch=={version}"


def torch(case: Case) -> Iterator[Finding]:
    """An error where it is missing or another minor version, a warning for another build."""
    for node, facts in case.ready:
        yield from map(Finding.of, torch_problems(node, facts))
    found = {node.name: facts.python for node, facts in case.ready if facts.python.torch}
    common = majority({name: told.torch for name, told in found.items()})
    for name, told in found.items():
        hint = HINT.format(python=told.executable, version=common.partition("+")[0])
        if _minor(told.torch) != _minor(common):
            what = f"torch {told.torch}, most have {common}: they do not understand each other"
            yield Finding(Level.ERROR, name, what, hint)
        elif told.torch != common:
            what = f"torch {told.torch}, most have {common}"
            yield Finding(Level.WARNING, name, what, hint)
        else:
            yield Finding(Level.FINE, name, told.torch)


def _minor(version: str) -> list[str]:
    return version.partition("+")[0].split(".")[:2]
