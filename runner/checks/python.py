"""Whether the task's interpreter is there, and the same everywhere."""

from __future__ import annotations

from collections.abc import Iterator

from runner.checks.context import Case, majority
from runner.core.model.facts import Facts, Python
from runner.core.model.finding import Finding, Level
from runner.core.planning.readiness import interpreter_problems, needs_python

HINT = "set cluster.python, for all or in cluster.setup, to the same version everywhere"


def python(case: Case) -> Iterator[Finding]:
    """An error where there is none, a warning where it is another version than most have.

    One more where a login shell has another environment than the task gets.
    """
    if not needs_python(case.spec.task):
        return
    for node, facts in case.ready:
        yield from map(Finding.of, interpreter_problems(node, facts))
    found = {node.name: facts.python for node, facts in case.ready if not facts.python.error}
    versions = {name: told.version for name, told in found.items()}
    common = majority(versions)
    for name, version in versions.items():
        if version.split(".")[:2] == common.split(".")[:2]:
            yield Finding(Level.FINE, name, f"{version}, {found[name].executable}")
        else:
            what = f"Python {version}, most have {common}: what one pickles, another may not read"
            yield Finding(Level.WARNING, name, what, HINT)
    for node, facts in case.ready:
        yield from _other_in_a_login_shell(node.name, case.spec.python, facts)


def _other_in_a_login_shell(node: str, name: str, facts: Facts) -> Iterator[Finding]:
    """What a user gets who types the name there, if it is another environment than the task's."""
    login, ours = facts.login_python, facts.python
    if not login.prefix or not ours.prefix or login.prefix == ours.prefix:
        return
    what = (
        f"a login shell finds {name} at {login.executable} ({_told(login)}), "
        f"ours is {ours.executable} ({_told(ours)})"
    )
    hint = f"if that one is meant: cluster.python={login.executable}"
    yield Finding(Level.WARNING, node, what, hint)


def _told(python: Python) -> str:
    return f"Python {python.version}, {f'torch {python.torch}' if python.torch else 'no torch'}"
