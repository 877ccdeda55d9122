"""Record of one run of the comparison, as it is kept in results.json."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("results.json")

Values = dict[str, Any]


@dataclass(frozen=True)
class Measurement:
    """One launcher in one scene, once.

    Attributes:
        scene: The scene.
        launcher: The launcher's name.
        round: From 1.
        values: By name: seconds, counts, texts; None for what did not happen within the limit, and
            a text "error" alone where the scene could not be played.
    """

    scene: str
    launcher: str
    round: int
    values: Values


@dataclass(frozen=True)
class Taking:
    """A launcher that took part, or why it did not.

    Attributes:
        name: The launcher's name.
        starts: What it starts on a host.
        version: Its version, "" if it could not be installed.
        skipped: Why it took no part, or "".
    """

    name: str
    starts: str
    version: str
    skipped: str = ""


@dataclass
class Record:
    """A whole run.

    Attributes:
        date: When it began, in UTC.
        machine: Cores, memory, load and kernel of what is all hosts; its Python and torch.
        settings: Numbers of hosts, ranks and lines, and the limits in seconds.
        launchers: Who took part.
        measurements: All, in the order in which they were taken.
    """

    date: str
    machine: dict[str, Any]
    settings: dict[str, Any]
    launchers: list[Taking] = field(default_factory=list)
    measurements: list[Measurement] = field(default_factory=list)

    def of(self, scene: str, launcher: str) -> list[Values]:
        """Return what a launcher took in a scene, round by round."""
        return [
            each.values
            for each in self.measurements
            if (each.scene, each.launcher) == (scene, launcher)
        ]

    def save(self, path: Path = FILE) -> None:
        """Write it: one measurement a line."""
        data = asdict(self)
        lists = {key: data.pop(key) for key in ("launchers", "measurements")}
        parts = [f' "{key}": {json.dumps(value)}' for key, value in data.items()]
        for key, items in lists.items():
            rows = ",\n".join(f"  {json.dumps(item)}" for item in items)
            parts.append(f' "{key}": [\n{rows}\n ]')
        path.write_text("{\n" + ",\n".join(parts) + "\n}\n")


def load(path: Path = FILE) -> Record:
    """Read a record."""
    data = json.loads(path.read_text())
    data["launchers"] = [Taking(**each) for each in data["launchers"]]
    data["measurements"] = [Measurement(**each) for each in data["measurements"]]
    return Record(**data)
