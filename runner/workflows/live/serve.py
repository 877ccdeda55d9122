"""Serving of live pages, until a signal ends it: of one run, or of all runs of a cluster."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator

from runner.core.errors import SIGNAL_EXIT_BASE
from runner.core.model.spec import LaunchRequest
from runner.core.shell import quote
from runner.ui.console.quiet import QuietConsole
from runner.ui.output import show
from runner.ui.page.render import LiveAddress
from runner.workflows.host_pool import handling_signals
from runner.workflows.live.cluster_pages import ClusterPages
from runner.workflows.live.document import Builder, Document, Status
from runner.workflows.live.event_streams import EventStreams
from runner.workflows.live.page_server import ADDRESS, PageServer
from runner.workflows.live.polling import PollingThread
from runner.workflows.live.run_page import RunPage

CLOSE_TIMEOUT_S = 3.0
ACCEPT_TICK_S = 0.1


class Site:
    """A server with the threads that make its documents."""

    def __init__(self, port: int) -> None:
        """Listen; raise NotReady if the port cannot be had."""
        self.streams = EventStreams()
        self.server = PageServer(port, self.streams)
        self.builder = Builder()

    def adopt(self, document: Document) -> Document:
        """Have a document built, and its viewers told of it."""
        document.on_change, document.wake = self.streams.wake, self.builder.wake
        return document

    def address(self, home: str = "") -> LiveAddress:
        """Return where the pages ask for what is new; `home` is where the list of runs is."""
        return LiveAddress(self.server.token, home and f"{home}?token={self.server.token}")

    @contextlib.contextmanager
    def serving(self) -> Iterator[None]:
        """Serve meanwhile."""
        serve = threading.Thread(
            target=self.server.serve_forever, args=(ACCEPT_TICK_S,), daemon=True, name="accept"
        )
        for thread in (self.streams, self.builder, serve):
            thread.start()
        try:
            yield
        finally:
            self.server.shutdown()
            self.server.server_close()
            self.builder.close()
            self.streams.close()
            self.streams.join(CLOSE_TIMEOUT_S)


class Announcer:
    """Says on the terminal what becomes of the run, each change in one line, once it may."""

    def __init__(self) -> None:
        self._last, self._latest = "", Status()
        self._may_speak, self._lock = False, threading.Lock()

    def begin(self) -> None:
        """Say it from now on."""
        self._may_speak = True
        self(self._latest)

    def __call__(self, status: Status) -> None:
        """Take a status."""
        with self._lock:
            self._latest = status
            text = f"the run has ended: {status.text}" if status.ended else status.text
            if self._may_speak and text != self._last:
                self._last = text
                say(text or "up to date again")


def serve_run(request: LaunchRequest, port: int) -> int:
    """Serve the page of a run, and follow the run; return the exit code.

    Raises:
        NotReady: The port cannot be had, or nothing of the run is on record or can be reached.
    """
    site, announce = Site(port), Announcer()
    page = RunPage(request, QuietConsole(), site.adopt, site.address, announce)
    site.builder.documents = lambda: [page.document]
    site.server.find = {"": page.document}.get
    return _serve(site, page.follower, "the run", announce.begin)


def serve_cluster(request: LaunchRequest, port: int) -> int:
    """Serve a list of the runs of a cluster, with the page of each; return the exit code.

    Raises:
        NotReady: The port cannot be had, or no host can be reached.
    """
    site = Site(port)
    pages = ClusterPages(request, QuietConsole(), site.adopt, site.address)
    site.builder.documents, site.server.find = pages.documents, pages.find
    return _serve(site, pages, "all runs")


def _serve(
    site: Site, poller: PollingThread, what: str, begin: Callable[[], None] = lambda: None
) -> int:
    """Serve what a thread polls until a signal comes; `begin` is called after the address."""
    with end_signals() as ended, site.serving():
        poller.start()
        while not poller.has_begun.wait(0.1) and not ended():
            pass
        if poller.problem:
            raise poller.problem
        if not ended():
            say_address(site.server, what)
            begin()
        code = wait_for_end(ended)
        poller.close()
        poller.join(CLOSE_TIMEOUT_S)
    return code


def say_address(server: PageServer, what: str) -> None:
    """Say where the page is, and how to look at it from elsewhere."""
    say(server.url)
    goes_on = "the run goes on" if what == "the run" else "the runs go on"
    say(f"Ctrl-C ends this page; {goes_on}")
    if "SSH_CONNECTION" in os.environ:
        here = _ssh_destination()
        tunnel = f"ssh -N -L {server.port}:{ADDRESS}:{server.port} {quote(here)}"
        say(f"this is a remote machine; on yours, first: {tunnel}")


def _ssh_destination() -> str:
    """Return this machine as its user may have called it: by the address of the connection."""
    words = os.environ["SSH_CONNECTION"].split()
    return words[2] if len(words) > 2 else "THIS_MACHINE"  # noqa: PLR2004 (client, port, server)


def say(text: str) -> None:
    """Print a line at once, also into a pipe."""
    show(text)
    sys.stdout.flush()


@contextlib.contextmanager
def end_signals() -> Iterator[Callable[[], int]]:
    """Have signals end nothing by themselves; return what returns the first one, 0 for none."""
    received: list[int] = []
    with handling_signals(received.append):
        yield lambda: received[0] if received else 0


def wait_for_end(ended: Callable[[], int]) -> int:
    """Wait for a signal; return the exit code: Ctrl-C is how a page ends that all is well with."""
    pause = threading.Event()
    while not (signum := ended()):
        pause.wait(0.2)
    return 0 if signum == signal.SIGINT else SIGNAL_EXIT_BASE + signum
