"""Kept folders of a task: the same for every run of it on a host, linked into each working copy.

They are in `WORKDIR/keep/PROJECT/TASK`. A file beside them names the run that has them.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from typing import Iterator, Tuple

from runner.core.wire.order import Order
from runner.core.wire.paths import KEEP, RunPaths, kept_folder
from runner.host.process.procfs import list_names
from runner.host.storage.permissions import make_folders, private_folder, remove_tree
from runner.host.storage.run_folder import mtime
from runner.host.storage.run_list import read_run

OWNER = ".run"


def other_user(workdir: str, place: str, run_id: str) -> str:
    """Return the id of another run that lives and has the folders of a task, "" for none."""
    try:
        with open(os.path.join(workdir, KEEP, place, OWNER), encoding="utf-8") as file:
            owner = str(json.load(file)["run_id"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""
    if owner == run_id:
        return ""
    for node in list_names(os.path.join(workdir, "runs", owner)):
        run = read_run(RunPaths(workdir, owner, node))
        if run is not None and (run.alive or run.relaunch_pending):
            return owner
    return ""


def link_kept(order: Order) -> None:
    """Link the folders that an order keeps into its working copy, and make those that are missing.

    Raises:
        ValueError: Another run has them, or the pushed code has something in their place.
    """
    if not order.keep:
        return
    private_folder(order.workdir, KEEP)
    make_folders(os.path.join(order.workdir, KEEP, order.keep_place))
    with open(os.path.join(order.workdir, KEEP, order.keep_place, OWNER), "a+b") as file:
        with contextlib.suppress(OSError):  # a disk without locks
            fcntl.flock(file, fcntl.LOCK_EX)
        if other := other_user(order.workdir, order.keep_place, order.run_id):
            raise ValueError(f"task.keep: run {other} writes to the folders of {order.keep_place}")
        file.truncate(0)
        file.write(json.dumps({"run_id": order.run_id}).encode())
    for name in order.keep:
        link = os.path.join(order.cwd, name)
        target = kept_folder(order.workdir, order.keep_place, name)
        make_folders(target)
        if os.path.islink(link) and os.readlink(link) == target:
            continue
        if os.path.isdir(link) and all(each.startswith(".") for each in os.listdir(link)):
            remove_tree(link)  # such as one with .gitkeep
        if os.path.lexists(link):
            hint = "leave it out by .runnerignore, or keep another folder"
            raise ValueError(f"task.keep: {name} is in the code that was pushed; {hint}")
        make_folders(os.path.dirname(link))
        os.symlink(target, link)


def remove_kept(workdir: str, cutoff: float, *, dry_run: bool) -> Iterator[Tuple[str, int]]:
    """Remove the folders of tasks whose last run began before `cutoff`; yield places and bytes."""
    top = os.path.join(workdir, KEEP)
    for project in list_names(top):
        for task in list_names(os.path.join(top, project)):
            place = f"{project}/{task}"
            begun_at = mtime(os.path.join(top, place, OWNER))
            if begun_at < cutoff and not other_user(workdir, place, ""):
                yield place, remove_tree(os.path.join(top, place), dry_run=dry_run)
        with contextlib.suppress(OSError):
            if not dry_run:
                os.rmdir(os.path.join(top, project))
