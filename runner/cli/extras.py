"""Optional packages: what to type where one that a verb needs is not installed."""

from __future__ import annotations

import importlib.util
import sys

from runner.core.errors import NotReady, Problem
from runner.core.shell import line


def missing_extra(where: str, package: str) -> NotReady:
    """Return the error that a package is missing, with the command that installs it here."""
    argv = [sys.executable, "-m", "pip", "install", package]
    if importlib.util.find_spec("pip") is None:  # as in an environment that uv made
        argv = ["uv", "pip", "install", "--python", sys.executable, package]
    return NotReady([Problem(where, f"{package} is not installed here", line(argv))])
