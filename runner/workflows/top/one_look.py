"""One look: two samples of each host, a second apart, as a table or as JSON."""

from __future__ import annotations

import contextlib
import json
import signal
import sys
import time
from collections.abc import Iterator
from types import FrameType

from runner.core.errors import SIGNAL_EXIT_BASE, Interrupted, NotReady
from runner.ui.layout import terminal_width
from runner.ui.output import note, show
from runner.ui.problems import render_problems
from runner.ui.top.screen import text_table
from runner.ui.top.terminal import takes_blocks
from runner.workflows.host_pool import SIGNALS
from runner.workflows.top.host_watch import HostWatch
from runner.workflows.top.subject import Subject

RUNS_S = 30.0  # how long the list of a host's runs is waited for, when all else is there
POLL_S = 0.05


def look_once(subject: Subject, watch: HostWatch, *, as_json: bool) -> int:
    """Print what is to be seen now; return the exit code.

    Raises:
        NotReady: No host answers.
    """
    with watch.running(), _interrupted_by_signals():
        _wait_until_settled(watch)
        end = subject.ended(watch)
        view = watch.view(subject.title)
    for text in watch.notes:
        note(text)
    if not view.answering:
        raise NotReady(watch.problems)
    if problems := watch.problems:
        show(render_problems(problems), file=sys.stderr)
    if as_json:
        show(json.dumps(view.as_data()))
    elif end:
        show(end)
    else:
        lines = text_table(view, terminal_width(), ascii_only=not takes_blocks())
        show("\n".join(line.plain.rstrip() for line in lines))
    return 0


def _wait_until_settled(watch: HostWatch) -> None:
    sampled_at = 0.0
    while not watch.is_settled:
        now = time.monotonic()
        sampled_at = sampled_at or (now if watch.is_sampled else 0.0)
        if sampled_at and now - sampled_at > RUNS_S:
            return
        watch.changed.wait(POLL_S)
        watch.changed.clear()


@contextlib.contextmanager
def _interrupted_by_signals() -> Iterator[None]:
    """Have signals raise Interrupted: connections are closed then."""

    def interrupt(signum: int, _: FrameType | None) -> None:
        raise Interrupted(SIGNAL_EXIT_BASE + signum, "interrupted")

    handled = [signum for signum in SIGNALS if signal.getsignal(signum) != signal.SIG_IGN]
    before = {signum: signal.signal(signum, interrupt) for signum in handled}
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
