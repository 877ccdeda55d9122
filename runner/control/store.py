"""The controller's own record of a run: a folder written so that a cut leaves it readable."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from runner.core.codec import encode
from runner.core.errors import ConfigError, Problem
from runner.core.events import Event
from runner.core.plan import Plan
from runner.core.verdict import Verdict


class RunStore:
    """`config.yaml`, `plan.json`, `events.jsonl`, `result.json`, `logs/NODE/rank_R.{out,err}`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.logs = folder / "logs"

    def check(self) -> None:
        """Refuse a folder that holds another run, or cannot be made, before anything is contacted.

        Raises:
            ConfigError: Naming `run_dir`.
        """
        parent = next(path for path in self.folder.parents if path.exists())
        what = ""
        if self.folder.exists() and (not self.folder.is_dir() or any(self.folder.iterdir())):
            what = f"{self.folder} is there already; a run never writes over another"
        elif not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
            what = f"cannot write in {parent}"
        if what:
            hint = "set run_dir to a new folder, or another run_id"
            raise ConfigError([Problem("run_dir", what, hint)])

    def create(self, config_yaml: str) -> None:
        """Make the folder with the configuration, and point `latest` beside it here."""
        self.logs.mkdir(parents=True, mode=0o700)
        self._write("config.yaml", config_yaml)
        latest = self.folder.parent / "latest"
        if latest.is_symlink() or not latest.exists():
            aside = self.folder.parent / f".latest.{os.getpid()}"
            aside.symlink_to(self.folder.name)
            aside.replace(latest)

    def write_plan(self, plan: Plan) -> None:
        """Record what every host will be told; before it is told."""
        self._write_json("plan.json", encode(plan))

    def write_result(self, plan: Plan, verdict: Verdict) -> None:
        """Record how it ended."""
        self._write_json("result.json", {"run_id": plan.run_id, **encode(verdict)})

    def append(self, event: Event) -> None:
        """Record what happened."""
        with (self.folder / "events.jsonl").open("a", encoding="utf-8") as file:
            file.write(event.line())

    def append_log(self, node: str, name: str, data: bytes) -> None:
        """Append to one stream of one node."""
        path = self.logs / node / name
        try:
            file = path.open("ab")
        except FileNotFoundError:
            path.parent.mkdir(mode=0o700, exist_ok=True)
            file = path.open("ab")
        with file:
            file.write(data)

    def tail(self, node: str, name: str, lines: int) -> list[str]:
        """Return the last lines of one stream."""
        try:
            with (self.logs / node / name).open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - (64 << 10)))
                text = file.read().decode(errors="replace")
        except OSError:
            return []
        return text.rstrip().splitlines()[-lines:]

    def _write_json(self, name: str, data: Any) -> None:
        self._write(name, json.dumps(data, indent=1) + "\n")

    def _write(self, name: str, text: str) -> None:
        aside = self.folder / f".{name}.new"
        aside.write_text(text, encoding="utf-8")
        aside.replace(self.folder / name)


LogSink = Callable[[str, str, str, bytes], None]
"""(node, source, stream, bytes): where followed logs go."""
