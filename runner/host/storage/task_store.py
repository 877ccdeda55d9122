"""Task store: the shipped tasks on a host, in folders named by the hash of their content."""

from __future__ import annotations

import os
import shutil
from typing import Any, Dict

from runner.core.wire.files import tasks_digest
from runner.core.wire.paths import tasks_folder
from runner.host.storage.permissions import private_folder


def has_tasks(workdir: str, wanted: str) -> bool:
    """Return whether the shipped tasks are here, every file with the content that has the hash."""
    folder = tasks_folder(workdir, wanted)
    contents = []
    try:
        for name in os.listdir(folder):
            if name != "__pycache__":  # Python's own, made by this user: see `find_exposure`
                with open(os.path.join(folder, name), "rb") as file:
                    contents.append((name, file.read()))
    except OSError:
        return False
    return tasks_digest(contents) == wanted


def store_tasks(workdir: str, bundle: Dict[str, Any], payload: bytes) -> None:
    """Unpack the shipped tasks, into a folder named by the hash of their content.

    `bundle` has the "hash", and "files" as [name, size] pairs. Several hosts may share the disk:
    each writes its own folder, and the first rename wins.
    """
    if has_tasks(workdir, bundle["hash"]):
        return
    private_folder(workdir, "tasks")
    final = tasks_folder(workdir, bundle["hash"])
    staging = f"{final}.{os.uname().nodename}.{os.getpid()}.new"
    os.mkdir(staging, mode=0o700)
    offset = 0
    for name, size in bundle["files"]:
        with open(os.path.join(staging, os.path.basename(name)), "wb") as file:
            file.write(payload[offset : offset + size])
        offset += size
    try:
        os.rename(staging, final)
    except OSError:  # another host was faster, or what is there is damaged
        try:
            if not has_tasks(workdir, bundle["hash"]):
                os.rename(final, f"{staging}.old")
                os.rename(staging, final)
        finally:
            for path in (staging, f"{staging}.old"):
                shutil.rmtree(path, ignore_errors=True)
