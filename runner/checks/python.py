"""Whether the task's interpreter is there, and the same everywhere."""

from __future__ import annotations

from collections.abc import Iterator

from runner.checks.case import Case, majority
from runner.core.finding import Finding, Level

HINT = "set cluster.python, for all or in cluster.setup, to the same version everywhere"


def python(case: Case) -> Iterator[Finding]:
    """An error where there is none, a warning where it is another version than most have."""
    found = {n: f.python for n, f in case.there if f.setup.code == 0}
    for name, told in found.items():
        if told.error:
            hint = "set cluster.python to the interpreter that has torch there"
            yield Finding(Level.ERROR, name, told.error, hint)
    versions = {name: told.version for name, told in found.items() if not told.error}
    for name, version in versions.items():
        common = majority(versions)
        if version.split(".")[:2] == common.split(".")[:2]:
            yield Finding(Level.FINE, name, f"{version}, {found[name].executable}")
        else:
            what = f"Python {version}, most have {common}: what one pickles, another may not read"
            yield Finding(Level.WARNING, name, what, HINT)
