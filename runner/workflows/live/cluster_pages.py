"""Cluster pages: a list of the runs on the hosts, and the page of each while it is looked at."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from runner.control.record import run_index
from runner.core.errors import NotReady
from runner.core.model.spec import LaunchRequest
from runner.ui.console.plain import Console
from runner.ui.layout import fold_names
from runner.ui.page.render import LiveAddress
from runner.ui.page.run_list import list_data, render_list
from runner.ui.reports import run_table
from runner.workflows.host_pool import HostPool
from runner.workflows.live.document import Document
from runner.workflows.live.page_server import Busy
from runner.workflows.live.polling import PollingThread, are_certain, missing_nodes, reason_text
from runner.workflows.live.run_page import RunPage
from runner.workflows.runs.discovery import RunFinder

POLL_S, UNVIEWED_POLL_S = 10.0, 60.0
TICK_S = 1.0
RECONNECT_S = 30.0
MAX_OPEN = 8
"""How many runs are followed at once."""

UNVIEWED_S = 180.0
"""A run whose page nobody looks at is let go of after this long."""

MAX_RUNS = 500
HOME = "../../"


class ListSource:
    """The list of runs; the table is as new as the last answer of the hosts."""

    def __init__(self, cluster: str, address: Callable[[], LiveAddress]) -> None:
        self.rows: Sequence[run_table.Row] = ()
        self.omitted_count = 0
        self._cluster, self._address, self._number = cluster, address, 0

    def show(self, rows: Sequence[run_table.Row]) -> None:
        """Show these runs, the first of too many."""
        self.rows, self.omitted_count = rows[:MAX_RUNS], max(0, len(rows) - MAX_RUNS)
        self._number += 1

    def fingerprint(self) -> object:
        """Return the number of the table."""
        return self._number

    def data(self) -> Mapping[str, Any]:
        """Return the data of the page."""
        return list_data(self._cluster, self.rows, self.omitted_count, time.time())

    def page(self, data: Mapping[str, Any]) -> str:
        """Return the page."""
        return render_list(data, self._address())


class ClusterPages(PollingThread):
    """The thread that asks the hosts of a cluster for their runs."""

    def __init__(
        self,
        request: LaunchRequest,
        console: Console,
        adopt: Callable[[Document], Document],
        address: Callable[[str], LiveAddress],
    ) -> None:
        self._source = ListSource(request.spec.cluster, lambda: address(""))
        self._list = adopt(Document(self._source))
        super().__init__("runs", request, console, self._list.report)
        self._adopt, self._run_address = adopt, lambda: address(HOME)
        self._names = [node.name for node in request.spec.nodes]
        self._open: dict[str, RunPage] = {}
        self._lock = threading.Lock()

    def documents(self) -> list[Document]:
        """Return all pages there are now."""
        with self._lock:
            return [self._list, *(each.document for each in self._open.values())]

    def find(self, run_id: str) -> Document | None:
        """Return the page of a run, "" for the list; None if there is no such run.

        Raises:
            Busy: Too many pages of runs are being looked at.
        """
        if not run_id:
            return self._list
        if run_id not in {row.run_id for row in self._source.rows}:
            return None
        with self._lock:
            if run_id not in self._open:
                self._make_room()
                spec = replace(self._request.spec, run_id=run_id)
                request = replace(self._request, spec=spec)
                folder = run_index.record_folder(run_id)
                request = replace(request, run_dir=folder) if folder else request
                page = RunPage(request, self._console, self._adopt, self._run_address)
                page.document.touch()
                page.follower.start()
                self._open[run_id] = page
            return self._open[run_id].document

    def _make_room(self) -> None:
        """Let go of the run that nobody has looked at for longest, if there are too many."""
        if len(self._open) < MAX_OPEN:
            return
        unviewed = {run_id: each.document.unviewed_s for run_id, each in self._open.items()}
        run_id = max(unviewed, key=lambda each: unviewed[each])
        if not unviewed[run_id]:
            raise Busy(f"{MAX_OPEN} runs are looked at already, which are all that go at once")
        self._open.pop(run_id).follower.close()

    def _let_go(self) -> None:
        with self._lock:
            unviewed = {
                n for n, each in self._open.items() if each.document.unviewed_s > UNVIEWED_S
            }
            for run_id in unviewed:
                self._open.pop(run_id).follower.close()

    def close(self) -> None:
        """End this thread and all followers soon."""
        super().close()
        with self._lock:
            for each in self._open.values():
                each.follower.close()

    def _poll(self) -> None:
        with self._open_pool() as pool:
            self._ask_on(pool)

    def _ask_on(self, pool: HostPool) -> None:
        finder: RunFinder | None = None
        connected_at = 0.0
        while not self._closed.is_set():
            try:
                if finder is None:
                    finder = RunFinder(pool, self._request.selector)
                elif time.monotonic() > connected_at + RECONNECT_S and are_certain(pool):
                    if missing_nodes(pool, self._names):
                        finder.reconnect_all()
                    connected_at = time.monotonic()
                self._show(finder)
                self._begin()
            except NotReady as error:
                self._tell(f"out of reach; trying again: {reason_text(error)}")
                self._begin(error)
            self._wait(pool)

    def _show(self, finder: RunFinder) -> None:
        if len(missing_nodes(finder.pool, self._names)) == len(self._names):
            raise NotReady([*finder.unreachable.values()])
        runs = finder.runs()
        places = {run.run_id: run_index.folder_of(run.info) for run in runs}
        folders = {run_id: str(folder) for run_id, folder in places.items() if folder}
        offsets = finder.clock_offsets
        self._source.show(
            run_table.rows(runs, {}, all_=True, clock_offsets=offsets, folders=folders)
        )
        gone = missing_nodes(finder.pool, self._names)
        missing = [name for name in self._names if name in gone or name in finder.unreachable]
        self._fresh_at = time.time()
        self._tell(f"not heard of {fold_names(missing)}; trying again" if missing else "")

    def _wait(self, pool: HostPool) -> None:
        """Wait for the next poll, which is sooner while somebody looks."""
        began = time.monotonic()
        while True:
            self._let_go()
            pool.poll_for_stop(TICK_S)
            waited_s = time.monotonic() - began
            if waited_s >= (POLL_S if self._list.is_viewed else UNVIEWED_POLL_S):
                return
