"""Origins record: `origins.json`, the place that set each key of a run's configuration.

A thread finds the places, so that no launch waits for them; without the file, only the words of the
command line are known.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path

from runner.control.record.atomic_file import replace_file
from runner.control.record.file_names import ORIGINS_FILE
from runner.core.model.spec import LaunchRequest, Secret

JOIN_S = 2.0
"""How long the end of a launch waits for the file."""


class OriginsRecorder:
    """Writes the file once, in a thread; what fails leaves none."""

    def __init__(self, request: LaunchRequest, folder: Path) -> None:
        self._request, self._folder = request, folder
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin, unless it has begun."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._write, daemon=True, name="origins")
            self._thread.start()

    def finish(self) -> None:
        """Have it written by now, within a limit."""
        self.start()
        if self._thread is not None:
            self._thread.join(JOIN_S)

    def _write(self) -> None:
        with contextlib.suppress(Exception):  # it is never the run's concern
            if self._request.origins is not None:
                places = self._request.origins()
                write_origins(self._folder, places, self._request.spec.secrets.values())


def write_origins(folder: Path, places: Mapping[str, str], secrets: Iterable[Secret]) -> None:
    """Write the file, whole or not at all; raise OSError. Words may have the value of a secret."""
    values = list(filter(None, (secret.reveal() for secret in secrets)))
    masked = {key: _mask(place, values) for key, place in places.items()}
    replace_file(folder / ORIGINS_FILE, f"{json.dumps(masked, indent=1)}\n".encode())


def _mask(place: str, values: Iterable[str]) -> str:
    if place.startswith("command line: "):
        for value in values:
            place = place.replace(value, "***")
    return place
