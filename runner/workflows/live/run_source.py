"""Run source: the page of one run, made of its record on this machine."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from runner.control.history.run_reader import read_run
from runner.core.errors import NotReady, Problem
from runner.ui.page.data import page_data
from runner.ui.page.render import LiveAddress, render_page

NOT_SHOWN = frozenset(
    {"sizes.jsonl", "supervisor.log", "state.json", "order.json", "outputs", "report.html"}
)
"""Files and folders that the page shows nothing of."""

MAX_ENTRIES, MAX_DEPTH = 50_000, 4


class RunSource:
    """The record in a folder, once there is one; the page is served at `address`."""

    def __init__(
        self, folder: Callable[[], Path | None], address: Callable[[], LiveAddress]
    ) -> None:
        self._folder, self._address = folder, address

    def fingerprint(self) -> tuple[object, ...]:
        """Return the sizes and times of the files that are shown."""
        return tuple(itertools.islice(_files(str(self._place()), MAX_DEPTH), MAX_ENTRIES))

    def data(self) -> Mapping[str, Any]:
        """Return the data of the page."""
        return page_data([read_run(self._place())])

    def page(self, data: Mapping[str, Any]) -> str:
        """Return the page."""
        return render_page(data, live=self._address())

    def _place(self) -> Path:
        folder = self._folder()
        if folder is None:
            raise NotReady([Problem("", "nothing of the run is on record here yet")])
        return folder


def _files(folder: str, depth: int) -> Iterator[tuple[str, int, int]]:
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError:
        return
    for entry in entries:
        if entry.name in NOT_SHOWN or entry.name.startswith("."):
            continue
        if entry.is_dir(follow_symlinks=False):
            if depth:
                yield from _files(entry.path, depth - 1)
            continue
        try:
            status = entry.stat(follow_symlinks=False)
        except OSError:  # it is gone
            continue
        yield entry.path, status.st_size, status.st_mtime_ns
