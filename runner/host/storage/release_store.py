"""Release store: the releases on a host, whether they are intact, and which may be removed."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import stat
import zlib
from typing import Dict, Generator, List, Optional, Set

from runner.core.wire.files import File, Manifest, release_hash
from runner.core.wire.paths import CODE_FOLDER, RunPaths, release_folder, releases_folder
from runner.host.process.event_loop import Steps
from runner.host.process.procfs import list_names
from runner.host.storage.permissions import private_folder, shared_token
from runner.host.storage.run_folder import mtime, read_state

MANIFEST = "manifest"
STORE_ID = ".store"
STAGING_SUFFIX = ".new"

_STAGING_NAME = re.compile(r"\.[^.]+\.(.+)\.(\d+)(?:\.broken|\.old)?" + re.escape(STAGING_SUFFIX))
"""The folder of an unfinished release: its name, the host and the pid that wrote it."""

BYTES_PER_STEP = 1 << 20  # bytes read or written per step; a step is otherwise one file


def has_release(workdir: str, name: str) -> bool:
    """Return whether a release is here; only its manifest is read."""
    return load_manifest(release_folder(workdir, name)) is not None


def find_damage(workdir: str, name: str, *, by_content: bool = False) -> Generator[None, None, str]:
    """Return the first path of a release that is not as it was stored, "" if all are.

    A file is judged by its size, with `by_content` by its digest, too.
    """
    root = release_folder(workdir, name)
    manifest = load_manifest(root)
    if manifest is None:
        return MANIFEST
    code = os.path.join(root, CODE_FOLDER)
    for folder in manifest.folders:
        yield
        if not os.path.isdir(os.path.join(code, folder.path)):
            return folder.path
    for link in manifest.links:
        yield
        target = ""
        with contextlib.suppress(OSError):
            target = os.readlink(os.path.join(code, link.path))
        if target != link.target:
            return link.path
    for file in manifest.files:
        yield
        path = os.path.join(code, file.path)
        if not has_size(path, file):
            return file.path
        if by_content and (yield from _digest_of(path)) != file.digest:
            return file.path
    return ""


def _digest_of(path: str) -> Generator[None, None, str]:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(BYTES_PER_STEP):
            digest.update(chunk)
            yield
    return digest.hexdigest()


def load_manifest(root: str) -> Optional[Manifest]:
    """Return the manifest in a release folder, None unless it has the hash of the folder's name."""
    try:
        with open(os.path.join(root, MANIFEST), "rb") as file:
            data = zlib.decompress(file.read())
        return Manifest.decode(data) if release_hash(data) == os.path.basename(root) else None
    except (OSError, ValueError, zlib.error):
        return None


def has_size(path: str, file: File) -> bool:
    """Return whether a stored file is there, with the size that it was stored with."""
    try:
        status = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISREG(status.st_mode) and status.st_size == file.size


def pin(workdir: str, name: str) -> Optional[int]:
    """Keep a release while the returned descriptor is open; None if there is none (any more)."""
    folder = release_folder(workdir, name)
    with contextlib.suppress(OSError):
        descriptor = lock_folder(folder, fcntl.LOCK_SH)
        with contextlib.suppress(OSError):
            if os.path.samestat(os.fstat(descriptor), os.stat(folder)):
                return descriptor
        os.close(descriptor)  # it was removed in between
    return None


def lock_folder(path: str, mode: int = fcntl.LOCK_EX) -> int:
    """Lock a folder while the returned descriptor is open.

    BlockingIOError is raised if another process has locked it. A network disk may have no locks:
    then only runs on record protect a release.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, mode | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise
    except OSError:
        pass
    return descriptor


def store_id(workdir: str) -> str:
    """Return the id of this store, which is the same on hosts that share the disk."""
    return shared_token(private_folder(workdir, "releases"), STORE_ID)


def stored_mode(file: File) -> int:
    """Return the permissions a file is stored with."""
    return (file.mode | 0o400) & 0o555


def complete(path: str, file: File) -> None:
    """Make a stored file read-only, and have it on the disk before a rename that names it."""
    os.chmod(path, stored_mode(file))
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def prune(workdir: str, keep: int, current: str) -> Generator[None, None, List[str]]:
    """Remove the oldest releases except `keep`, `current` and those in use; return their names."""
    parent = releases_folder(workdir)
    last_use = _last_use(parent)
    others = [name for name in last_use if name != current]
    others.sort(key=lambda name: last_use[name], reverse=True)
    old = others[keep:]
    in_use = _releases_in_use(workdir) if old else set()
    removed = []
    for name in old:
        staging = "" if name in in_use else move_away(parent, name)
        if staging:
            removed.append(name)
            yield from remove_tree(staging)
    return removed


def find_unused(workdir: str, cutoff: float) -> List[str]:
    """Return the releases that no run names and that were last used before `cutoff`."""
    last_use = _last_use(releases_folder(workdir))
    old = {name for name, used_at in last_use.items() if used_at < cutoff}
    return sorted(old - _releases_in_use(workdir)) if old else []


def _last_use(parent: str) -> Dict[str, float]:
    """Return when each release was used last; 0 for one without a manifest."""
    names = [name for name in list_names(parent) if not name.startswith(".")]
    return {name: mtime(os.path.join(parent, name, MANIFEST)) for name in names}


def remove_tree(path: str) -> Steps:
    """Remove a folder as far as possible."""
    for folder, folders, files in os.walk(path, topdown=False):
        for name in [*files, *folders]:
            yield
            entry = os.path.join(folder, name)
            with contextlib.suppress(OSError):
                if name in folders and not os.path.islink(entry):
                    os.rmdir(entry)
                else:
                    os.unlink(entry)
    with contextlib.suppress(OSError):
        os.rmdir(path)


def move_away(parent: str, name: str) -> str:
    """Rename a release that is to be removed; return its new path, "" if it is pinned."""
    path = os.path.join(parent, name)
    suffix = f"{os.uname().nodename}.{os.getpid()}.old{STAGING_SUFFIX}"
    staging = os.path.join(parent, f".{name}.{suffix}")
    with contextlib.suppress(OSError):
        lock = lock_folder(path)
        try:
            os.rename(path, staging)
        finally:
            os.close(lock)
        return staging
    return ""


def _releases_in_use(workdir: str) -> Set[str]:
    runs = os.path.join(workdir, "runs")
    return {
        _release_of(RunPaths(workdir, run, node))
        for run in list_names(runs)
        for node in list_names(os.path.join(runs, run))
    }


def _release_of(folder: RunPaths) -> str:
    """Return the release of a run on one host, "" when it is over."""
    state = read_state(folder)
    if state is None or state.is_terminal:
        return ""
    try:
        with open(folder.order, encoding="utf-8") as file:
            return str(json.load(file)["release"])
    except (OSError, ValueError, KeyError):
        return ""


def stored_contents(parent: str) -> Generator[None, None, Dict[str, Dict[int, str]]]:
    """Return the paths of the files of earlier releases, by digest and stored mode."""
    contents: Dict[str, Dict[int, str]] = {}
    for name in list_names(parent):
        manifest = None if name.startswith(".") else load_manifest(os.path.join(parent, name))
        yield
        for file in manifest.files if manifest else ():
            yield
            path = os.path.join(parent, name, CODE_FOLDER, file.path)
            by_mode = contents.setdefault(file.digest, {})
            if stored_mode(file) not in by_mode and has_size(path, file):
                by_mode[stored_mode(file)] = path
    return contents


def remove_stale(parent: str) -> Steps:
    """Remove the unfinished releases of processes of this host that were killed."""
    host = os.uname().nodename
    for name in list_names(parent):
        match = _STAGING_NAME.fullmatch(name)
        if match is None or match.group(1) != host:
            continue
        pid = match.group(2)
        # One with our own pid is from an earlier process: ours begins only now.
        if pid != str(os.getpid()) and os.path.exists(f"/proc/{pid}"):
            continue
        try:  # in another container of the same name the pid may be alive
            lock = lock_folder(os.path.join(parent, name))
        except OSError:
            continue
        yield from remove_tree(os.path.join(parent, name))
        os.close(lock)
