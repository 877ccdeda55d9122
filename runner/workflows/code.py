"""What of the user's code goes with a run, and which packages it needs on the hosts."""

from __future__ import annotations

from pathlib import Path

from runner.control.code.recorded import Again
from runner.control.code.snapshot import Snapshot
from runner.control.rpc import bootstrap
from runner.core.model.launch_request import Composed
from runner.core.model.packages import Wants
from runner.core.model.release import Code
from runner.core.model.spec import Spec


def snapshot_of(composed: Composed) -> Snapshot | Again | None:
    """Begin a snapshot of the user's code if the run needs one, or find that of a past run.

    Raises:
        ConfigError: It cannot be pushed, or is not to be had.
    """
    if composed.recorded:
        return Again(composed.recorded, composed.spec, Path.cwd(), composed.run_dir)
    if not composed.spec.pushes:
        return None
    return Snapshot.take(composed.spec, Path.cwd(), composed.run_dir)


def code_of(spec: Spec, snapshot: Snapshot | Again | None) -> Code:
    """Return what travels with a run."""
    if snapshot is not None:
        return snapshot.code
    return Code(tasks_hash=bootstrap.shipped_tasks().hash) if spec.task.shipped else Code()


def wants_of(composed: Composed) -> Wants:
    """Return what packages the ranks' project names; of a past run, and of our tasks, none."""
    spec = composed.spec
    if spec.task.shipped or composed.recorded or "packages" in spec.skip_checks:
        return Wants()
    from runner.control.code.requirements import of_project

    return of_project(spec, Path.cwd())
