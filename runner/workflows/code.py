"""What of the user's code goes with a run, and which packages it needs on the hosts."""

from __future__ import annotations

from pathlib import Path

from runner.control.code.recorded import RerunCode
from runner.control.code.snapshot import Snapshot
from runner.control.rpc import bootstrap
from runner.core.model.launch_request import LaunchRequest
from runner.core.model.packages import Requirements
from runner.core.model.release import CodeRef
from runner.core.model.spec import Spec


def open_code_source(composed: LaunchRequest) -> Snapshot | RerunCode | None:
    """Begin a snapshot of the user's code if the run needs one, or find that of a past run.

    Raises:
        ConfigError: It cannot be pushed, or is not to be had.
    """
    if composed.recorded_code:
        return RerunCode(composed.recorded_code, composed.spec, Path.cwd(), composed.run_dir)
    if not composed.spec.pushes_code:
        return None
    return Snapshot.take(composed.spec, Path.cwd(), composed.run_dir)


def code_ref(spec: Spec, source: Snapshot | RerunCode | None) -> CodeRef:
    """Return what travels with a run."""
    if source is not None:
        return source.code
    return (
        CodeRef(tasks_hash=bootstrap.shipped_tasks().hash) if spec.task.shipped_file else CodeRef()
    )


def required_packages(composed: LaunchRequest) -> Requirements:
    """Return what packages the ranks' project names; of a past run, and of our tasks, none."""
    spec = composed.spec
    if spec.task.shipped_file or composed.recorded_code or "packages" in spec.skip_checks:
        return Requirements()
    from runner.control.code.requirements import project_requirements

    return project_requirements(spec, Path.cwd())
