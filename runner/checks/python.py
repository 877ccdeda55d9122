"""The task's Python interpreter: found, and of the same version everywhere."""

from __future__ import annotations

from collections.abc import Iterator

from runner.checks.context import CheckContext, most_common
from runner.core.model.facts import Facts, Interpreter
from runner.core.model.finding import Finding, Level
from runner.core.planning.readiness import needs_python

SAME_VERSION_HINT = (
    "set cluster.python, for all or in cluster.setup, to the same version everywhere"
)


def python(context: CheckContext) -> Iterator[Finding]:
    """Report an error where there is none; warn of other versions and other login environments."""
    if not needs_python(context.spec.task):
        return
    for node in context.ready_nodes:
        yield from context.unmet("python", node)
    pythons = {node.name: facts.python for node, facts in context.ready if not facts.python.error}
    versions = {name: info.version for name, info in pythons.items()}
    common = most_common(versions)
    for name, version in versions.items():
        if version.split(".")[:2] == common.split(".")[:2]:
            yield Finding(Level.OK, name, f"{version}, {pythons[name].executable}")
        else:
            message = f"Python {version}, most have {common}: pickles may not be readable by both"
            yield Finding(Level.WARNING, name, message, SAME_VERSION_HINT)
    for node, facts in context.ready:
        yield from _login_shell_findings(node.name, context.spec.python, facts)


def _login_shell_findings(node: str, name: str, facts: Facts) -> Iterator[Finding]:
    """Warn if a login shell finds another environment than the task gets."""
    login_python, task_python = facts.login_python, facts.python
    if (
        not login_python.prefix
        or not task_python.prefix
        or login_python.prefix == task_python.prefix
    ):
        return
    message = (
        f"a login shell finds {name} at {login_python.executable} ({_python_text(login_python)}), "
        f"the task gets {task_python.executable} ({_python_text(task_python)})"
    )
    hint = f"to use that one: cluster.python={login_python.executable}"
    yield Finding(Level.WARNING, node, message, hint)


def _python_text(info: Interpreter) -> str:
    return f"Python {info.version}, {f'torch {info.torch}' if info.torch else 'no torch'}"
