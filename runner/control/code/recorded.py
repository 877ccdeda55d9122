"""The code of a past run that is to run once more: that very code, or nothing is started."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from runner.control.code.snapshot import Snapshot
from runner.control.rpc import bootstrap
from runner.core.errors import ConfigError, NotReady, Problem
from runner.core.model.facts import Facts
from runner.core.model.launch_request import Recorded
from runner.core.model.release import Code
from runner.core.model.spec import Spec

TODAYS = "or start it without rerun, with the code there is now"
NAMED = 8
"""So many nodes are named in a message; the others are counted."""


class Again:
    """Recorded code: a release the hosts may still hold, or our shipped tasks as they were.

    The tree here is hashed meanwhile: it may be what a host lacks.
    """

    def __init__(self, recorded: Recorded, spec: Spec, here: Path, leave_out: Path) -> None:
        """Look at the code there is here.

        Args:
            recorded: The past run.
            spec: What to run.
            here: The folder the user stands in.
            leave_out: The new run's record, which is no part of the code.

        Raises:
            ConfigError: It needs shipped tasks that are not those of this version.
        """
        self._recorded = recorded
        self._snapshot: Snapshot | None = None
        self._refused: Sequence[Problem] = ()
        if not self.code.release:
            _check_tasks(recorded, spec)
            return
        try:
            self._snapshot = Snapshot.take(spec, here, leave_out)
        except ConfigError as error:
            self._refused = error.problems  # matters only where a host lacks the release

    @property
    def code(self) -> Code:
        """What a plan has to know of it."""
        return self._recorded.code

    def to_push(self, facts: Mapping[str, Facts]) -> Snapshot | None:
        """Return what brings the release to the hosts that lack it; None where all have it.

        Raises:
            NotReady: Some lack it, and it is not what is here.
        """
        lacking = sorted(name for name, told in facts.items() if not told.release_held)
        if not self.code.release or not lacking:
            return None
        if self._snapshot and self._snapshot.code.release == self.code.release:
            return self._snapshot
        more = f" and {len(lacking) - NAMED} more" if len(lacking) > NAMED else ""
        what = (
            f"run {self._recorded.run_id} ran release {self.code.release}, which is not on "
            f"{', '.join(lacking[:NAMED])}{more} (any more), and the code here is not the same"
        )
        hint = "\n".join([*map(str, self._refused), self._cure(), TODAYS])
        raise NotReady([Problem("rerun", what, hint)])

    def _cure(self) -> str:
        commit = self.code.commit
        if not commit:
            return "bring the code here back to what it was, and start again"
        changed = ", bring back what was not committed then" if commit.endswith("+") else ""
        return f"git checkout {commit.rstrip('+')}{changed}, and start again"


def _check_tasks(recorded: Recorded, spec: Spec) -> None:
    tasks = bootstrap.shipped_tasks().hash
    if recorded.code.tasks_hash == tasks:
        return
    what = (
        f"run {recorded.run_id} ran {spec.task.target} of another version of the runner: its "
        f"tasks were {recorded.code.tasks_hash}, here they are {tasks}"
    )
    hint = (
        f"install that version; or put its {spec.task.shipped} into your project and add "
        f"task.module=null task.script={spec.task.shipped}\n{TODAYS}"
    )
    raise ConfigError([Problem("rerun", what, hint)])
