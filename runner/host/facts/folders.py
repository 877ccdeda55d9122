"""Folder survey: workdir, project, script and release of a run, looked at in a child."""

from __future__ import annotations

import os
from typing import Any, Dict, Optional

from runner.core.codec import decode, encode
from runner.core.model.facts import FactsRequest
from runner.core.model.hardware import TopProcess
from runner.core.protocol.paths import tasks_folder
from runner.host.process import bounded_child


def absolute(path: str, home: str) -> str:
    """Return `path` from the root; a leading `~/` is `home`."""
    if path == "~" or path.startswith("~/"):
        return os.path.normpath(os.path.join(home, path[2:]))
    try:
        return os.path.abspath(path)
    except OSError:  # our working directory was deleted
        return os.path.normpath(os.path.join(home, path))


def start_survey(request: FactsRequest, home: str) -> bounded_child.BoundedChild:
    """Look at the folders of a run in a child: any of them may be on a dead network disk."""
    return bounded_child.BoundedChild(lambda: _survey(request, home), request.tool_timeout_s)


def survey_result(child: bounded_child.BoundedChild, request: FactsRequest) -> Dict[str, Any]:
    """Return the fields of Facts that `start_survey` could fill."""
    report = child.report()
    if report.get("top_process"):
        report["top_process"] = decode(TopProcess, report["top_process"])
    if "workdir_error" not in report:
        reason = f"no answer within {child.limit_s:g} s" if child.timed_out else child.text
        report["workdir_error"] = f"looking at {request.workdir}: {reason}"
    return report


def unwritable_reason(path: str) -> str:
    """Return why no file can be written below `path`, "" if it can; nothing is tried out."""
    parent = _nearest_existing(path)
    if not os.path.exists(parent):
        return f"{parent} is a link to nothing"
    if not os.path.isdir(parent):
        return f"{parent} is a file, not a folder"
    if os.statvfs(parent).f_flag & os.ST_RDONLY:
        return f"{parent} is on a read-only file system"
    if not os.access(parent, os.W_OK | os.X_OK):
        return f"no permission to write in {parent}"
    return ""


def _survey(request: FactsRequest, home: str) -> None:
    report = bounded_child.report_facts
    report(shm_free=_free_bytes("/dev/shm"))
    workdir = absolute(request.workdir, home)
    report(
        workdir_error=unwritable_reason(workdir),
        disk_free=_free_bytes(_nearest_existing(workdir)),
        has_tasks=bool(request.tasks_hash)
        and os.path.isdir(tasks_folder(workdir, request.tasks_hash)),
    )
    project = absolute(request.project, home)
    if request.project:
        report(project_exists=os.path.isdir(project))
    if request.script:
        script = absolute(os.path.join(project, request.script), home)
        report(script_exists=os.path.isfile(script))
    if request.release:
        from runner.host.storage import release_store  # noqa: PLC0415 (verbs do without)

        report(has_release=release_store.is_intact(workdir, request.release))
        if request.thorough:  # reads the whole release, so it comes last
            report(release_state=release_store.check_intact(workdir, request.release))
    if request.thorough:
        from runner.host.facts import machine  # noqa: PLC0415

        report(top_process=encode(machine.top_process()))


def _nearest_existing(path: str) -> str:
    """Return the nearest parent of `path` that is there, even as a dangling link."""
    while not os.path.lexists(path):
        path = os.path.dirname(path)
    return path


def _free_bytes(path: str) -> Optional[int]:
    try:
        disk = os.statvfs(path)
    except OSError:
        return None
    return disk.f_bavail * disk.f_frsize
