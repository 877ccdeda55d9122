"""Choice of the code source of a run, and of the packages its code needs on the hosts."""

from __future__ import annotations

from pathlib import Path

from runner.control.code.recorded import RerunCode
from runner.control.code.snapshot import Snapshot
from runner.control.code.source import CodeOnHosts, CodeSource
from runner.core.model.launch_request import LaunchRequest
from runner.core.model.packages import Requirements


def open_code_source(request: LaunchRequest) -> CodeSource:
    """Return the code source of a run; a snapshot is hashed in the background.

    Raises:
        ConfigError: The project cannot be pushed, or the code of the past run is gone.
    """
    if request.recorded_code:
        return RerunCode(request.recorded_code, request.spec, Path.cwd(), request.run_dir)
    if request.spec.pushes_code:
        return Snapshot.take(request.spec, Path.cwd(), request.run_dir)
    return CodeOnHosts(request.spec)


def required_packages(request: LaunchRequest) -> Requirements:
    """Return the packages the ranks' project names; none for a past run or a shipped task."""
    spec = request.spec
    if spec.task.shipped_file or request.recorded_code or "packages" in spec.skip_checks:
        return Requirements()
    from runner.control.code.requirements import project_requirements

    return project_requirements(spec, Path.cwd())
