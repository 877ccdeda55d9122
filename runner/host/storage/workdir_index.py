"""Workdir index: links in the usual workdir to the others in which this user's runs are here.

By it a run is found by its id alone. It is read and written in children: the home folder, or a disk
that a link leads to, may hang, and neither a start nor a list of runs is to wait for that.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
from typing import Any, Callable, Collection, Dict, Generator, List, Mapping, Tuple

from runner.core.protocol.paths import USUAL_WORKDIR, is_workdir
from runner.host.process.bounded_child import BoundedChild, report_facts, wait_all
from runner.host.process.event_loop import Steps, run_steps
from runner.host.storage.permissions import find_exposure, private_folder
from runner.host.storage.run_list import list_runs

INDEX = "workdirs"
MAX_LINKS = 32  # beyond which those go whose folder is gone, then those used longest ago
LIMIT_S = 5.0  # for an index, then for all that its links lead to

Body = Callable[[], None]


def remember(workdir: str) -> Steps:
    """Have the runs in a workdir found from now on, as far as the home folder allows."""
    if workdir != os.path.expanduser(USUAL_WORKDIR):
        yield from _in_children({workdir: lambda: _add_link(workdir)})


def list_elsewhere(
    workdir: str, node: str, others: Collection[str] = (), run_id: str = ""
) -> Generator[None, None, Tuple[List[Dict[str, Any]], Dict[str, str]]]:
    """List the runs in this user's other workdirs here, each with its own, and why not in others.

    Where several have a run of one id, it is the one launched last. The rest as in `list_runs`.
    """
    usual = os.path.normpath(os.path.expanduser(USUAL_WORKDIR))
    index = os.path.join(usual, INDEX)
    looked = yield from _in_children({index: lambda: _report_links(usual)})
    unread = {name: problem for name, child in looked.items() if (problem := _problem(child))}
    bodies = {
        place: functools.partial(_report_runs, place, workdir, node, others, run_id)
        for place in dict.fromkeys([usual, *looked[index].report().get("places", ())])
    }
    children = yield from _in_children(bodies)
    found: Dict[str, Tuple[str, List[Dict[str, Any]]]] = {}  # by the folder that links lead to
    for place, child in children.items():
        report = child.report()
        if "runs" in report:
            found.setdefault(report["real"], (place, report["runs"]))
        else:
            unread[place] = _problem(child)
    newest: Dict[str, Tuple[float, str]] = {}
    for place, runs in found.values():
        for info in [run["info"] for run in runs]:
            known = newest.get(info["run_id"], (-1.0, ""))
            newest[info["run_id"]] = max(known, (info["launched_at"], place))
    listed = [
        {**run, "workdir": place}
        for place, runs in found.values()
        for run in runs
        if newest[run["info"]["run_id"]][1] == place
    ]
    return listed, unread


def _in_children(bodies: Mapping[str, Body]) -> Generator[None, None, Dict[str, BoundedChild]]:
    """Do each thing in a child of its own, all at once; return these when they have ended."""
    children = {name: BoundedChild(body, LIMIT_S) for name, body in bodies.items()}
    try:
        yield from wait_all([*children.values()])
    finally:
        for child in children.values():
            child.kill()
    return children


def _problem(child: BoundedChild) -> str:
    if child.timed_out:
        return "a disk there does not answer"
    return "" if child.code == 0 else child.text or f"exit code {child.code}"


def _add_link(workdir: str) -> None:
    index = private_folder(os.path.expanduser(USUAL_WORKDIR), INDEX)
    link = os.path.join(index, hashlib.sha256(os.fsencode(workdir)).hexdigest()[:16])
    with contextlib.suppress(FileExistsError):
        os.symlink(workdir, link)
    os.utime(link, follow_symlinks=False)
    links = {os.path.join(index, name) for name in os.listdir(index)} - {link}
    if len(links) >= MAX_LINKS:
        for old in sorted(links, key=_worth)[: 1 - MAX_LINKS]:
            with contextlib.suppress(OSError):  # it is no link
                os.unlink(old)


def _worth(link: str) -> Tuple[bool, float]:
    return os.path.isdir(link), os.lstat(link).st_mtime


def _report_links(usual: str) -> None:
    """Report the workdirs that the index has, the one used last first; none if it is not safe."""
    index = os.path.join(usual, INDEX)
    if not os.path.isdir(index):
        return
    _require_safe(usual)
    places: Dict[str, float] = {}
    for link in [os.path.join(index, name) for name in os.listdir(index)]:
        with contextlib.suppress(OSError):  # it is no link, or gone
            places[os.readlink(link)] = os.lstat(link).st_mtime
    known = sorted(filter(is_workdir, places), key=lambda place: -places[place])
    report_facts(places=known[:MAX_LINKS])


def _report_runs(place: str, workdir: str, node: str, others: Collection[str], run_id: str) -> None:
    """Report the runs in a workdir, unless it is the one that was asked about."""
    real, runs = os.path.realpath(place), []
    if os.path.isdir(place) and real != os.path.realpath(workdir):
        _require_safe(place)
        runs = run_steps(list_runs(place, node, others, run_id))["runs"]
    if runs and not is_workdir(place):
        raise ValueError("a path with a $, a backslash or a control character cannot be named")
    report_facts(real=real, runs=runs)


def _require_safe(workdir: str) -> None:
    """Raise PermissionError unless a workdir is this user's, and nobody else can change it.

    Where a folder was removed, a stranger may have made another.
    """
    exposure = find_exposure(workdir)
    if exposure is not None:
        raise PermissionError(str(exposure))
    if os.stat(workdir).st_uid != os.getuid():
        raise PermissionError(f"{workdir} belongs to another user")
