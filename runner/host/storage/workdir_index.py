"""Workdir index: links in the usual workdir to the others in which this user's runs are here.

By it a run is found by its id alone. It is read and written in children: the home folder, or a disk
that a link leads to, may hang, and neither a start nor a list of runs is to wait for that.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from typing import Any, Callable, Collection, Dict, Generator, List, Tuple

from runner.core.protocol.paths import USUAL_WORKDIR, is_workdir
from runner.host.process.bounded_child import BoundedChild, report_facts, wait_all
from runner.host.process.event_loop import Steps, run_steps
from runner.host.storage.permissions import find_exposure, private_folder
from runner.host.storage.run_list import list_runs

INDEX = "workdirs"
MAX_LINKS = 32  # beyond which those go whose folder is gone, then those used longest ago
LIMIT_S = 5.0  # for all of an index, and for all that its links lead to

Body = Callable[[], None]


def remember(workdir: str) -> Steps:
    """Have the runs in a workdir found from now on, as far as the home folder allows."""
    if workdir != os.path.expanduser(USUAL_WORKDIR):
        yield from _in_child(lambda: _add_link(workdir))


def list_elsewhere(
    workdir: str, node: str, others: Collection[str] = (), run_id: str = ""
) -> Generator[None, None, Tuple[List[Dict[str, Any]], List[str]]]:
    """List the runs in this user's other workdirs here, each with its own, and those not looked at.

    Where several have a run of one id, it is the one launched last. The rest as in `list_runs`.
    """
    found = yield from _in_child(lambda: _report_runs(workdir, node, others, run_id))
    newest: Dict[str, Tuple[float, str]] = {}
    for place, runs in found.items():
        for info in [run["info"] for run in runs or ()]:
            known = newest.get(info["run_id"], (-1.0, ""))
            newest[info["run_id"]] = max(known, (info["launched_at"], place))
    listed = [
        {**run, "workdir": place}
        for place, runs in found.items()
        for run in runs or ()
        if newest[run["info"]["run_id"]][1] == place
    ]
    return listed, [place for place, runs in found.items() if runs is None]


def _in_child(body: Body) -> Generator[None, None, Dict[str, Any]]:
    """Do something in a child; return what it reported in time."""
    child = BoundedChild(body, LIMIT_S)
    try:
        yield from wait_all([child])
    finally:
        child.kill()
    return child.report()


def _add_link(workdir: str) -> None:
    index = private_folder(os.path.expanduser(USUAL_WORKDIR), INDEX)
    link = os.path.join(index, hashlib.sha256(os.fsencode(workdir)).hexdigest()[:16])
    with contextlib.suppress(FileExistsError):
        os.symlink(workdir, link)
    os.utime(link, follow_symlinks=False)
    links = {os.path.join(index, name) for name in os.listdir(index)} - {link}
    if len(links) >= MAX_LINKS:
        for old in sorted(links, key=_worth)[: 1 - MAX_LINKS]:
            os.unlink(old)


def _worth(link: str) -> Tuple[bool, float]:
    return os.path.isdir(link), os.lstat(link).st_mtime


def _report_runs(workdir: str, node: str, others: Collection[str], run_id: str) -> None:
    """Report the runs in each of the other workdirs; None for one until it has been read."""
    usual = os.path.expanduser(USUAL_WORKDIR)
    report_facts(**{usual: None})
    places = [usual, *_linked(usual)]
    report_facts(**dict.fromkeys(places))
    seen = {os.path.realpath(workdir)}
    for place in places:
        runs, real = [], os.path.realpath(place)
        if real not in seen:
            runs = run_steps(list_runs(place, node, others, run_id))["runs"]
        seen.add(real)
        report_facts(**{place: runs})


def _linked(usual: str) -> List[str]:
    """Return the workdirs that the index has, the one used last first; none if it is not safe."""
    index = os.path.join(usual, INDEX)
    if not os.path.isdir(index) or find_exposure(usual):
        return []
    links = [os.path.join(index, name) for name in os.listdir(index)]
    links.sort(key=lambda link: os.lstat(link).st_mtime, reverse=True)
    return [*filter(is_workdir, map(os.readlink, links))]
