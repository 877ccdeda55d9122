"""Folders: whether another user could replace what lies below; how they are made and removed."""

from __future__ import annotations

import contextlib
import os
import stat
from typing import Iterable, NamedTuple, Optional, Set, Tuple

from runner.core.wire.paths import KEEP
from runner.host.process.jobs import checkpoint
from runner.host.process.procfs import list_names, user_name

STORES = ("runs", "releases", "pool", "tasks", "code", "prepared", KEEP)


class Exposure(NamedTuple):
    """A folder that another user can change: "above" the workdir, or "inside" it."""

    path: str
    problem: str
    place: str

    def __str__(self) -> str:
        return f"{self.path} {self.problem}"


def find_exposure(workdir: str) -> Optional[Exposure]:
    """Return what lets another user change the content of a workdir, None if nothing does.

    The rule is that of sshd's StrictModes, where links lead: whatever is above it and its stores
    must be this user's or root's, and not writable by others; a sticky folder may be. The workdir
    and its stores must be for their owner alone. What is not there yet counts as safe. Whoever owns
    `/` counts as root: some containers show root as nobody.
    """
    trusted = {os.getuid(), 0, os.stat("/").st_uid}
    folders = [workdir, *(os.path.join(workdir, store) for store in STORES)]
    targets = [os.path.realpath(folder) for folder in folders]
    for target in targets:
        parts = target.rstrip("/").split("/")
        for depth in range(1, len(parts) + 1):
            path = "/".join(parts[:depth]) or "/"
            try:
                status = os.stat(path)
            except OSError:
                break
            is_inside = path in targets
            problem = _problem(status, trusted, may_be_sticky=not is_inside)
            if problem:
                return Exposure(path, problem, "inside" if is_inside else "above")
    return None


def make_folders(path: str) -> None:
    """Make a folder, and what leads to it, for this user alone where it is missing.

    The umask stays: it is that of all threads, and of what they start.
    """
    if os.path.isdir(path):
        return
    make_folders(os.path.dirname(path))
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        if not os.path.isdir(path):  # another process was faster
            raise


def write_files(folder: str, files: Iterable[Tuple[str, int]], contents: bytes) -> None:
    """Write files, by their paths and sizes, below a new folder; `contents` are those of all."""
    make_folders(folder)
    offset = 0
    for name, size in files:
        path = os.path.join(folder, name)
        make_folders(os.path.dirname(path))
        with open(path, "wb") as file:
            file.write(contents[offset : offset + size])
        offset += size


def private_folder(workdir: str, name: str) -> str:
    """Return a folder of the workdir, made for this user alone where it is missing.

    PermissionError: another user could change what is in it.
    """
    path = os.path.join(workdir, name)
    make_folders(path)
    exposure = find_exposure(workdir)
    if exposure is not None:
        raise PermissionError(f"cluster.workdir: {exposure}")
    return path


def _problem(status: os.stat_result, trusted: Set[int], *, may_be_sticky: bool) -> str:
    if status.st_uid not in trusted:
        return f"belongs to the user {user_name(status.st_uid)}"
    if may_be_sticky and status.st_mode & stat.S_ISVTX:
        return ""
    if status.st_mode & stat.S_IWOTH:
        return "can be written to by everybody"
    if status.st_mode & stat.S_IWGRP:  # or by those that an ACL names, whom this bit limits, too
        return "can be written to by its group"
    return ""


def remove_tree(root: str, *, dry_run: bool = False) -> int:
    """Remove a folder, also what ranks made read-only; return how many bytes it takes on disk."""
    size = 0
    folders = [root]
    for folder in folders:  # which grows meanwhile
        if not dry_run:
            with contextlib.suppress(OSError):
                os.chmod(folder, 0o700)
        for name in list_names(folder):
            checkpoint()
            path = os.path.join(folder, name)
            with contextlib.suppress(OSError):
                status = os.lstat(path)
                if stat.S_ISDIR(status.st_mode):
                    folders.append(path)
                    continue
                size += status.st_blocks * 512
                if not dry_run:
                    os.unlink(path)
    for folder in reversed(folders):
        with contextlib.suppress(OSError):
            if not dry_run:
                os.rmdir(folder)
    return size
