"""Files of a run's record on the controller's machine: their names, and how one is replaced."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

WRITE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC

CONFIG_FILE, OVERRIDES_FILE = "config.yaml", "overrides.yaml"
CONTACT_FILE = "contact.json"
PLAN_FILE = "plan.json"
RESULT_FILE = "result.json"

HOSTS_FOLDER = "hosts"
"""Below it, a folder for each node with what its host has on record."""

SWEEP_FILE = "sweep.json"
"""In the record of a run, its place in a sweep; in the folder of a sweep, its runs."""

ORIGIN_FILE = "origin.json"
"""In a record whose configuration and plan came from hosts: which these are."""

ORIGINS_FILE = "origins.json"
"""In the record of a launch: the place that set each key of its configuration."""


def replace_file(path: Path, data: bytes) -> None:
    """Write a file for its owner alone, whole or not at all; raise OSError."""
    temp_path = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        with os.fdopen(os.open(temp_path, WRITE_FLAGS, 0o600), "wb") as file:
            file.write(data)
        temp_path.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            temp_path.unlink()
        raise
