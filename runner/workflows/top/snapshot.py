"""Snapshot of `top --once`: two samples of each host, a second apart, as a table or as JSON."""

from __future__ import annotations

import json
import sys
import time

from runner.core.codec import encode
from runner.core.errors import SIGNAL_EXIT_BASE, Interrupted, NotReady
from runner.ui.layout import terminal_width
from runner.ui.output import note, show
from runner.ui.problems import render_problems
from runner.ui.top.screen import text_table
from runner.ui.top.terminal import takes_blocks
from runner.workflows.host_pool import handling_signals
from runner.workflows.top.host_watch import HostWatch
from runner.workflows.top.subject import Subject

RUNS_S = 30.0  # how long the list of a host's runs is waited for, when all else is there
POLL_S = 0.05


def print_snapshot(subject: Subject, watch: HostWatch, *, as_json: bool) -> int:
    """Print what is to be seen now; return the exit code.

    Raises:
        NotReady: No host answers.
    """
    with watch.running(), handling_signals(_interrupt):
        _wait_until_settled(watch)
        end = subject.end(watch)
        view = watch.view(subject.title)
    for text in watch.notes:
        note(text)
    if not view.answering:
        raise NotReady(watch.problems)
    if problems := watch.problems:
        show(render_problems(problems), file=sys.stderr)
    if as_json:
        show(json.dumps({**view.as_data(), "ended": encode(end) if end else None}))
    elif end:
        show(subject.end_text(end))
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


def _interrupt(signum: int) -> None:
    """Have connections closed."""
    raise Interrupted(SIGNAL_EXIT_BASE + signum, "interrupted")
