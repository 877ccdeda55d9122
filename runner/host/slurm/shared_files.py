"""Shared files of a job: written in place, ended by a line break, and opened anew by each reader.

With NFS, an open asks the server; a look at a file's time or a folder's names may not.
"""

from __future__ import annotations

import json
import os
from typing import Any, Optional

from runner.core.codec import parse_json

LAG_S = 60.0
"""How long a disk may show a machine old sizes and names (nfs(5), acdirmax)."""


def write(path: str, data: Any) -> None:
    """Write JSON into a file, which is complete once its line break is there."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    with open(descriptor, "w", encoding="utf-8") as file:
        file.write(json.dumps(data) + "\n")
        file.flush()
        os.fsync(file.fileno())


def read(path: str) -> Optional[Any]:
    """Return the content of such a file, None while it is empty, unfinished or not there."""
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except OSError:
        return None
    return parse_json(text) if text.endswith("\n") else None
