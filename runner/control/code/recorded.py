"""Recorded code of a past run: a rerun uses exactly that code, or is refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from runner.control.code.snapshot import Snapshot
from runner.control.code.source import shipped_tasks
from runner.core.errors import ConfigError, NotReady, Problem
from runner.core.model.facts import Facts
from runner.core.model.launch_request import RecordedCode
from runner.core.model.release import CodeRef
from runner.core.model.spec import Spec
from runner.core.text import join_some

CURRENT_CODE_HINT = "or start it without rerun, with the code there is now"


class RerunCode:
    """The code of a past run: a release the hosts may still have, or the shipped tasks.

    The project is hashed in the background, because it may be the release that a host lacks.
    """

    def __init__(self, recorded: RecordedCode, spec: Spec, cwd: Path, exclude: Path) -> None:
        """Begin a snapshot of the project, without `exclude`, the record of the new run.

        Raises:
            ConfigError: It ran shipped tasks of another version.
        """
        self.notes: tuple[str, ...] = ()
        self._recorded = recorded
        self._snapshot: Snapshot | None = None
        self._snapshot_problems: Sequence[Problem] = ()
        if not self.code.release:
            _check_tasks(recorded, spec)
            return
        try:
            self._snapshot = Snapshot.take(spec, cwd, exclude)
        except ConfigError as error:
            self._snapshot_problems = error.problems  # matters only where a host lacks the release

    @property
    def code(self) -> CodeRef:
        """The reference to it in a plan."""
        return self._recorded.code

    def snapshot_if_needed(self, facts: Mapping[str, Facts]) -> Snapshot | None:
        """Return the snapshot if hosts lack the release; None if all have it.

        Raises:
            NotReady: Some lack it, and the project here is not that release.
        """
        lacking = sorted(name for name, node_facts in facts.items() if not node_facts.has_release)
        if not self.code.release or not lacking:
            return None
        if self._snapshot and self._snapshot.code.release == self.code.release:
            return self._snapshot
        message = (
            f"run {self._recorded.run_id} ran release {self.code.release}, which is not on "
            f"{join_some(lacking)} (any more), and the code here is not the same"
        )
        hints = [*map(str, self._snapshot_problems), self._restore_hint(), CURRENT_CODE_HINT]
        raise NotReady([Problem("rerun", message, "\n".join(hints))])

    def _restore_hint(self) -> str:
        commit = self.code.commit
        if not commit:
            return "restore the code here as it was, and start again"
        changed = ", restore what was not committed" if commit.endswith("+") else ""
        return f"git checkout {commit.rstrip('+')}{changed}, and start again"


def _check_tasks(recorded: RecordedCode, spec: Spec) -> None:
    tasks_hash = shipped_tasks().hash
    if recorded.code.tasks_hash == tasks_hash:
        return
    message = (
        f"run {recorded.run_id} ran {spec.task.target} of another version of the runner: its "
        f"tasks were {recorded.code.tasks_hash}, here they are {tasks_hash}"
    )
    hint = (
        f"install that version; or put its {spec.task.shipped_file} into your project and add "
        f"task.module=null task.script={spec.task.shipped_file}\n{CURRENT_CODE_HINT}"
    )
    raise ConfigError([Problem("rerun", message, hint)])
