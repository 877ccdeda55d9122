"""Code source of a run: a snapshot of the project, the code of a past run, or what hosts have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from runner.control.code.shipped_tasks import shipped_tasks
from runner.core.model.facts import Facts
from runner.core.model.release import CodeRef
from runner.core.model.spec import Spec

if TYPE_CHECKING:
    from runner.control.code.snapshot import Snapshot


class CodeSource(Protocol):
    """Where the code that the ranks run comes from."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What the user should know about it."""

    @property
    def code(self) -> CodeRef:
        """The reference to it in a plan."""

    def snapshot_if_needed(self, facts: Mapping[str, Facts]) -> Snapshot | None:
        """Return the snapshot to push to the hosts that lack the code; None if there is none.

        Raises:
            NotReady: A host lacks it, and it is not here either.
        """


class CodeOnHosts:
    """Code that is not pushed: the shipped tasks, or a project that is on the hosts already."""

    notes: tuple[str, ...] = ()

    def __init__(self, spec: Spec) -> None:
        tasks_hash = shipped_tasks().hash if spec.task.shipped_file else ""
        self.code = CodeRef(tasks_hash=tasks_hash)

    def snapshot_if_needed(self, facts: Mapping[str, Facts]) -> None:
        """Return None: there is nothing to push."""
