"""Polling thread: it asks hosts again and again, for hours, whether they can be reached or not."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterable, Iterator

from runner.control.rpc.session import BoundedInbox
from runner.core.errors import InternalFault, Interrupted, Problem, RunnerError
from runner.core.model.spec import LaunchRequest
from runner.core.text import printable
from runner.ui.console.plain import Console
from runner.workflows.host_pool import HostPool, enqueue_signal
from runner.workflows.live.document import Status

DOUBT_S = 1.5
"""A host is pinged every second; one that was silent for longer may be gone."""


class PollingThread(threading.Thread):
    """A thread that polls hosts until it is closed.

    `report` takes the status whenever that is known anew, from this thread.
    """

    def __init__(
        self,
        name: str,
        request: LaunchRequest,
        console: Console,
        report: Callable[[Status], None],
    ) -> None:
        super().__init__(daemon=True, name=name)
        self.has_begun = threading.Event()  # there is something to show, or a problem
        self.problem: RunnerError | None = None  # why it has begun with nothing to show
        self._request, self._console, self._report = request, console, report
        self._inbox, self._closed = BoundedInbox(), threading.Event()
        self._fresh_at: float | None = None

    def close(self) -> None:
        """End the thread soon; what it looks at goes on."""
        self._closed.set()
        enqueue_signal(self._inbox, signal.SIGTERM)

    def run(self) -> None:
        """Poll; a fault of ours ends the thread, and not the page."""
        try:
            self._poll()
            self._begin()
        except Interrupted:
            self._begin()
        except Exception as error:  # noqa: BLE001 (said where the runs are looked at)
            text = printable(f"{type(error).__name__}: {error}")
            self._tell(f"not followed any more: {text}, a bug of the runner")
            self._begin(InternalFault([Problem("", text, "this is a bug of the runner")]))

    def _poll(self) -> None:
        raise NotImplementedError

    def _begin(self, problem: RunnerError | None = None) -> None:
        """Note that there is something to show, or why not; only the first time counts."""
        if not self.has_begun.is_set():
            self.problem = problem
            self.has_begun.set()

    def _tell(self, text: str, *, ended: bool = False) -> None:
        self._report(Status(text, self._fresh_at, ended))

    @contextlib.contextmanager
    def _open_pool(self) -> Iterator[HostPool]:
        """Have a pool meanwhile, whose waits end as this thread is closed."""
        pool = HostPool(self._request.spec, self._console, self._inbox)
        try:
            yield pool
        finally:
            pool.close()


def missing_nodes(pool: HostPool, nodes: Iterable[str]) -> list[str]:
    """Return the nodes without a connection, after closing those of silent hosts."""
    for session in list(pool.sessions.values()):
        if session.idle_s > pool.spec.lost_s:
            session.close(is_silent=True)
    return [node for node in nodes if node not in pool.sessions or pool.sessions[node].closed]


def are_certain(pool: HostPool) -> bool:
    """Return whether each open connection works: facts are asked over them, too, and waited for."""
    open_sessions = (each for each in pool.sessions.values() if not each.closed)
    return all(session.idle_s < DOUBT_S for session in open_sessions)


def reason_text(error: RunnerError) -> str:
    """Return why hosts are out of reach, in one line."""
    problem = error.problems[0]
    where = f"{problem.subject}: " if problem.subject else ""
    return printable(f"{where}{problem.message}")
