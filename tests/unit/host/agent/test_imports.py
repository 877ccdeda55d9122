"""Imports of the agent: a request loads its own handler, and no code of other requests."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[4]

LIST_IMPORTS = """
import importlib, sys
importlib.import_module("runner.host.agent.server")
before = set(sys.modules)
importlib.import_module(sys.argv[1])
print(*(name for name in before if name.startswith("runner.")))
print(*sorted({name for name in sys.modules if name.startswith("runner.")} - before))
"""


def imported_with(module: str) -> tuple[set[str], set[str]]:
    """Return our modules that the agent's server imports, and those that `module` adds to them."""
    argv = [sys.executable, "-c", LIST_IMPORTS, module]
    result = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True, timeout=20)
    server, added = result.stdout.splitlines()
    return set(server.split()), set(added.split())


def test_listing_runs_loads_what_reads_run_folders() -> None:
    """Neither releases nor recovery: `ps` asks every host of a cluster."""
    server, added = imported_with("runner.host.agent.runs")
    assert "runner.host.storage.run_list" in added
    assert len(server | added) < 40
    others = ("release", "garbage", "recovery", "cgroup", "facts.ports")
    assert not [name for name in server | added for part in others if part in name]
