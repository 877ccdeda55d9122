"""Image records: which images our launches brought to this host, so that `clean` may remove them.

A file of the workdir for each; its time is that of the last launch with the image. Hosts that share
a disk have their own, since each has its own store of images.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import subprocess
from typing import Any, Collection, Dict, List, Mapping, Sequence, Tuple

from runner.host.process import procfs
from runner.host.storage.permissions import private_folder
from runner.host.storage.run_folder import mtime, write_atomic

FOLDER = "images"
REMOVE_TIMEOUT_S = 120.0
ABSENT = (b"no such image", b"image not known")  # as docker and podman say it


def remember(workdir: str, image: str, remove: Sequence[str], environ: Mapping[str, str]) -> None:
    """Record an image that was not here before, and the command that removes it in `environ`."""
    record = {"host": _host(), "image": image, "remove": [*remove], "env": dict(environ)}
    with contextlib.suppress(OSError):  # then it stays when others are removed
        path = os.path.join(private_folder(workdir, FOLDER), _name(remove))
        write_atomic(path, json.dumps(record))


def mark_used(workdir: str, remove: Sequence[str]) -> None:
    """Note that a launch uses an image, if it is one that we brought here."""
    with contextlib.suppress(OSError):
        os.utime(os.path.join(workdir, FOLDER, _name(remove)))


def remove_unused(
    workdir: str, cutoff: float, in_use: Collection[str], *, dry_run: bool
) -> Tuple[List[str], List[str]]:
    """Remove what was last used before `cutoff`; return what went, or would, and what stays.

    Images `in_use` stay, and those that a container has, whoever's it is: their engine refuses.
    """
    removed, kept = [], []
    for path, record in _old_records(workdir, cutoff):
        image = record["image"]
        if image not in in_use and (dry_run or _remove(record)):
            removed.append(image)
            if not dry_run:
                os.unlink(path)
        else:
            kept.append(image)
    return removed, kept


def _old_records(workdir: str, cutoff: float) -> List[Tuple[str, Dict[str, Any]]]:
    records, folder = [], os.path.join(workdir, FOLDER)
    for path in [os.path.join(folder, name) for name in sorted(procfs.list_names(folder))]:
        with contextlib.suppress(OSError, ValueError, KeyError):
            with open(path, encoding="utf-8") as file:
                record = json.load(file)
            if record["host"] == _host() and mtime(path) <= cutoff:
                records.append((path, record))
    return records


def _remove(record: Mapping[str, Any]) -> bool:
    """Return whether an image is gone; one that somebody else removed is."""
    null, pipe = subprocess.DEVNULL, subprocess.PIPE
    try:
        done = subprocess.run(
            record["remove"],
            env={**os.environ, **record["env"]},
            stdin=null,
            stdout=null,
            stderr=pipe,
            timeout=REMOVE_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0 or any(text in done.stderr.lower() for text in ABSENT)


def _host() -> str:
    return os.uname().nodename


def _name(remove: Sequence[str]) -> str:
    return hashlib.sha256(json.dumps([_host(), *remove]).encode()).hexdigest()[:16]
