"""Folders: whether another user could replace what lies below one, and how they are removed.

The rule is that of sshd's StrictModes. Links are followed one by one: each is as good as the
folder it lies in.
"""

from __future__ import annotations

import contextlib
import errno
import grp
import os
import secrets
import stat
import time
from typing import Iterator, NamedTuple, Optional, Set, Tuple

from runner.host.process.jobs import checkpoint
from runner.host.process.procfs import list_names, user_name

MOST_LINKS = 40  # as in the kernel
TOKEN_TIMEOUT_S = 5.0
TOKEN_POLL_S = 0.01
STORES = ("runs", "releases", "pool", "tasks", "code", "prepared")


class Exposure(NamedTuple):
    """A folder or link that another user can change: "above" the workdir, or "inside" it."""

    path: str
    problem: str
    place: str

    def __str__(self) -> str:
        return f"{self.path} {self.problem}"


def find_exposure(workdir: str) -> Optional[Exposure]:
    """Return what lets another user change the content of a workdir, None if nothing does.

    Whatever leads to it must be this user's or root's, and not writable by others; a sticky folder
    may be. The workdir and its stores must be for their owner alone. What is not there yet counts
    as safe. Whoever owns `/` counts as root: some containers show root as nobody.
    """
    trusted = {os.getuid(), 0, os.stat("/").st_uid}
    target = ""
    for path, status, target in _resolve(workdir):
        problem = _problem(status, trusted, may_be_sticky=not target)
        if problem:
            return Exposure(path, problem, "inside" if target else "above")
    for store in (os.path.join(target, name) for name in STORES if target):
        for path, status, is_store in _resolve(store):  # a link may lead anywhere
            problem = _problem(status, trusted, may_be_sticky=not is_store)
            if problem:
                return Exposure(path, problem, "inside")
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


def shared_token(folder: str, name: str) -> str:
    """Return the random text in a file, which the first process of all hosts of the disk writes.

    No hard link is needed for that, since some disks have none.
    """
    path = os.path.join(folder, name)
    with contextlib.suppress(FileExistsError):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with open(descriptor, "wb") as file:
                file.write(secrets.token_hex(16).encode())
                file.flush()
                os.fsync(file.fileno())
        except OSError:  # such as a full disk
            os.unlink(path)
            raise
    deadline = time.monotonic() + TOKEN_TIMEOUT_S
    while time.monotonic() < deadline:
        with open(path, encoding="ascii") as written:
            if token := written.read():
                return token
        time.sleep(TOKEN_POLL_S)  # its writer has only just made it
    raise OSError(errno.EIO, "it is empty: remove it, and start again", path)


def _resolve(path: str) -> Iterator[Tuple[str, os.stat_result, str]]:
    """Yield every folder and link that leads to a path, as far as it exists.

    The last one is the folder itself: with it comes its path, with the others "".
    """
    yield "/", os.stat("/"), ""
    current = "/"
    words = path.split("/")
    links = 0
    while words:
        word, *words = words
        if word == "..":
            current = os.path.dirname(current)
        if word in ("", ".", ".."):
            continue
        entry = os.path.join(current, word)
        try:
            status = os.lstat(entry)
            link = os.readlink(entry) if stat.S_ISLNK(status.st_mode) else ""
        except OSError:
            return
        if link:
            links += 1
            if links > MOST_LINKS:
                return
            words = link.split("/") + words
            current = "/" if link.startswith("/") else current
        else:
            current = entry
        yield entry, status, "" if link or any(words) else current


def _problem(status: os.stat_result, trusted: Set[int], *, may_be_sticky: bool) -> str:
    if status.st_uid not in trusted:
        return f"belongs to the user {user_name(status.st_uid)}"
    is_sticky = may_be_sticky and status.st_mode & stat.S_ISVTX
    if stat.S_ISLNK(status.st_mode) or is_sticky:
        return ""
    if status.st_mode & stat.S_IWOTH:
        return "can be written to by everybody"
    if status.st_mode & stat.S_IWGRP:  # or by those that an ACL names, whom this bit limits, too
        return f"can be written to by the group {_group_name(status.st_gid)}"
    return ""


def _group_name(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


def remove_tree(root: str, *, dry_run: bool = False) -> int:
    """Remove a folder as far as possible, including what ranks made read-only.

    Returns:
        The bytes that its files take on the disk.
    """
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
