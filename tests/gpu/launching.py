"""Launches on this machine alone, without root and without SSH."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.lab.launching import Launcher, Result

Progress = list[dict[str, Any]]

LIMIT_S = 120
WHY_LINES = 20
PRESETS = ("DIST_BACKEND", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE")
"""What an image may set, and would change the backend or the rounding."""


class LocalLauncher:
    """Runs launches and verbs in a folder of its own; a check fails where one ends otherwise."""

    def __init__(self, folder: Path, gpus: int) -> None:
        self.gpus = gpus
        self.workdir = f"cluster.workdir={folder / 'hosts'}"
        self._launcher = Launcher(folder / "project")
        home = {"HOME": os.environ.get("HOME", "/")}  # torch may be below it
        self._launcher.env |= {"XDG_STATE_HOME": str(folder / "state"), **home}
        for name in PRESETS:
            self._launcher.env.pop(name, None)
        self.close = self._launcher.close

    def __call__(
        self, *words: str, gpus: int | str = 1, nproc: int = 0, code: int = 0, **env: str
    ) -> Result:
        """Launch with so many ranks and GPUs, with none on the CPU, or with chosen devices."""
        if isinstance(gpus, int) and gpus > self.gpus:
            pytest.skip(f"needs {gpus} GPUs")
        nproc = nproc or (max(gpus, 1) if isinstance(gpus, int) else 1)
        ranks = f"cluster.nproc_per_node={nproc}"
        chosen = (f"cluster.nodes.local.gpus={gpus}",) if gpus != "" else ()
        return self.verb(*words, self.workdir, ranks, *chosen, code=code, env=env)

    def verb(
        self, *words: str, code: int | None = 0, env: Mapping[str, str] | None = None
    ) -> Result:
        """Run a launch or a verb to its end; with None for `code`, any is right."""
        done = self._launcher(*words, seconds=LIMIT_S, env=env)
        if code not in (done.code, None):
            told = (self._launcher("why").out or done.out + done.err).rstrip().splitlines()
            last, command = "\n".join(told[-WHY_LINES:]), " ".join(("runner", *words))
            first = next(iter(told), "it printed nothing")
            pytest.fail(f"exit code {done.code}: {first}\n\n{command}\n\n{last}", pytrace=False)
        return done


def is_forked(run: Result) -> bool:
    """Whether the ranks are children of a fork server, not of their shims."""
    folder = run.folder.parents[2] / "hosts" / "runs" / run.folder.name / "local" / "attempt_0"
    records = [json.loads(path.read_text()) for path in folder.glob("rank_*.start")]
    return bool(records) and all(record["parent"] != record["shim"] for record in records)


def progress(run: Result) -> Progress:
    lines = run.log("local", 0).splitlines()
    return [json.loads(line) for line in lines if line.startswith('{"step"')]


def plan_backend(run: Result) -> str:
    backend: str = json.loads((run.folder / "plan.json").read_text())["backend"]
    return backend


def collectives(run: Result) -> dict[str, Any]:
    path = run.folder / "outputs" / "local" / "collectives.json"
    measured: dict[str, Any] = json.loads(path.read_text())
    return measured
