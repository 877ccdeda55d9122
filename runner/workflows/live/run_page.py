"""Page of one run: made of its record on this machine, which a follower keeps up to date."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from runner.control.history.run_reader import read_run
from runner.core.errors import NotReady, Problem
from runner.core.model.spec import LaunchRequest
from runner.ui.console.plain import Console
from runner.ui.page.data import page_data
from runner.ui.page.render import LiveAddress, render_page
from runner.workflows.live.document import Document, Status
from runner.workflows.live.run_follower import RunFollower

NOT_SHOWN = frozenset({"supervisor.log", "state.json", "order.json", "outputs", "report.html"})
"""Files and folders that the page shows nothing of."""

MAX_ENTRIES, MAX_DEPTH = 50_000, 4


class RunPage:
    """The page of a run, and what follows the run; `announce` takes each status, too."""

    def __init__(
        self,
        request: LaunchRequest,
        console: Console,
        adopt: Callable[[Document], Document],
        address: Callable[[], LiveAddress],
        announce: Callable[[Status], None] = lambda _: None,
    ) -> None:
        self.follower = RunFollower(request, console, self._report)
        self.document = adopt(Document(RunSource(lambda: self.follower.folder, address)))
        self._announce = announce

    def _report(self, status: Status) -> None:
        self.document.report(status)
        self._announce(status)


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
