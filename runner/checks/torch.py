"""Whether torch is there, and the same everywhere: versions do not understand each other."""

from __future__ import annotations

from collections.abc import Iterator

from runner.checks.case import Case, majority
from runner.core.finding import Finding, Level

HINT = "the same torch on every node: {python} -m pip install torch=={version}"


def torch(case: Case) -> Iterator[Finding]:
    """An error where it is missing or another minor version, a warning for another build."""
    found = {n: f.python for n, f in case.there if f.setup.code == 0 and not f.python.error}
    there = {name: told.torch for name, told in found.items() if told.torch}
    for name, told in found.items():
        if not told.torch:
            what = f"no torch in {told.executable} (Python {told.version})"
            hint = (
                "set cluster.python to an interpreter that has it, activate its environment in "
                f"cluster.setup, or there: {told.executable} -m pip install torch"
            )
            yield Finding(Level.ERROR, name, what, hint)
            continue
        common = majority(there)
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
