"""Live view: what a host watch knows, on the terminal, until a key or a signal ends it."""

from __future__ import annotations

import signal
import time

from runner.core.errors import SIGNAL_EXIT_BASE
from runner.ui.output import show
from runner.ui.top.screen import Screen, encode_frame
from runner.ui.top.terminal import Terminal, takes_blocks
from runner.workflows.top.host_watch import HostWatch
from runner.workflows.top.subject import RunEnd, Subject

DRAW_S = 0.5  # how often news are shown
QUIT = ("q", "Q", "escape", "\x03")


def watch_live(subject: Subject, watch: HostWatch, *, colour: bool) -> int:
    """Show the view until it is left, or its run has ended; return the exit code."""
    screen = Screen(ascii_only=not takes_blocks())
    with watch.running(), Terminal() as terminal:
        end = _draw_until_left(subject, watch, screen, terminal, colour=colour)
    if end:
        show(subject.end_text(end))
    if terminal.signum in (0, signal.SIGINT):
        return 0
    return SIGNAL_EXIT_BASE + terminal.signum


def _draw_until_left(
    subject: Subject, watch: HostWatch, screen: Screen, terminal: Terminal, *, colour: bool
) -> RunEnd | None:
    """Return how the run of the view has ended, None if the reader left before."""
    view, next_look = watch.view(subject.title), 0.0
    while not terminal.signum:
        now = time.monotonic()
        if now >= next_look:
            next_look = now + DRAW_S
            if end := subject.end(watch):
                return end
            view = watch.view(subject.title)
        columns, lines = terminal.size()
        terminal.draw(encode_frame(screen.lines(view, columns, lines), columns, colour=colour))
        for key in terminal.keys(next_look - time.monotonic()):
            if key in QUIT:
                return None
            screen.on_key(key)
    return None
