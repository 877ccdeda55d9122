"""Shipped tasks on a host: a folder named by the hash of its content, written once."""

from __future__ import annotations

import os
import shutil
from typing import Any, Dict

from runner.core.protocol.paths import tasks_folder


def store(workdir: str, bundle: Dict[str, Any], payload: bytes) -> None:
    """Unpack the files of `bundle` ("hash", and "files" as [name, size] pairs) from `payload`.

    Several hosts may share the disk: each writes its own folder, and the first rename wins.
    """
    final = tasks_folder(workdir, bundle["hash"])
    if os.path.isdir(final):
        return
    staging = f"{final}.{os.uname().nodename}.{os.getpid()}.new"
    os.makedirs(staging, mode=0o700)
    offset = 0
    for name, size in bundle["files"]:
        with open(os.path.join(staging, os.path.basename(name)), "wb") as file:
            file.write(payload[offset : offset + size])
        offset += size
    try:
        os.rename(staging, final)
    except OSError:
        shutil.rmtree(staging, ignore_errors=True)
        if not os.path.isdir(final):
            raise
