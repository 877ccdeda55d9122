"""Whether the release that a launch would push is there already, and is what it was."""

from __future__ import annotations

from collections.abc import Iterator

from runner.checks.context import Case
from runner.core.model.finding import Finding, Level


def code(case: Case) -> Iterator[Finding]:
    """A warning where it is damaged, an error where a launch could not push what is here."""
    if case.spec.pushes:
        for problem in case.unpushable:
            yield Finding(Level.ERROR, "", f"{problem.where}: {problem.what}", problem.hint)
    if not case.code.release:
        return
    release = f"release {case.code.release[:12]}"
    hint = f"python -m runner deploy --cluster {case.spec.cluster}"
    for node, facts in case.ready:
        if facts.release == "intact":
            yield Finding(Level.FINE, node.name, f"{release} is there, every file as it was")
        elif facts.release == "absent":
            yield Finding(Level.FINE, node.name, f"{release} is not there; a launch pushes it")
        elif facts.release == "damaged":
            then = "does not notice" if facts.release_held else "sends them again"
            what = f"{release} is there, with files that are not what was pushed; a launch {then}"
            yield Finding(Level.WARNING, node.name, what, hint)
        else:
            what = f"{release} could not be read: its disk is slow, or denies it"
            yield Finding(Level.WARNING, node.name, what, hint)
