"""Observer of a run's attempts: shows them on the console and writes them to the record."""

from __future__ import annotations

import functools
from collections.abc import Callable

from runner.control.attempt.observer import RunObserver
from runner.control.record.run_store import RunStore
from runner.core.model.plan import Plan
from runner.core.protocol.events import Event
from runner.core.protocol.paths import is_rank_source, local_log_name, source_rank
from runner.ui.console.plain import Console
from runner.ui.reports.stacks import StallReporter


def console_observer(
    console: Console,
    record: Callable[[Event], None] = lambda _: None,
    log: Callable[[str, str, str, int, bytes], None] = lambda *_: None,
) -> RunObserver:
    """Return an observer that shows an attempt's state on the console.

    Args:
        console: The console.
        record: Takes each event.
        log: Takes (node, source, stream, offset, bytes) of each log.
    """
    return RunObserver(
        record=record,
        log=log,
        message=console.message,
        phase=console.phase,
        node_status=console.node_status,
        console_full=lambda: console.is_full,
        mute=console.mute,
    )


def attempt_observer(
    plan: Plan,
    console: Console,
    store: RunStore | None,
    *,
    report_stalls: bool = True,
    on_reader_gone: Callable[[], None] = lambda: None,
) -> RunObserver:
    """Return an observer that also shows what the ranks write, and records all of it.

    Args:
        plan: The attempt.
        console: The console.
        store: The record; None if another process writes it.
        report_stalls: Whether to show the stacks of a run that makes no progress.
        on_reader_gone: Called when the console's reader has closed it.
    """
    stalls: StallReporter | None = None
    if store and report_stalls:
        read_stacks = functools.partial(store.stacks, plan.attempt)
        stalls = StallReporter(plan, console.message, read_stacks)

    def record(event: Event) -> None:
        if store:
            store.append(event)
        if stalls:
            stalls.on_event(event)

    def log(node: str, source: str, stream: str, offset: int, data: bytes) -> None:
        if store:
            store.write_log(node, local_log_name(plan.attempt, source, stream), offset, data)
        if stalls:
            stalls.on_log(source)
        if is_rank_source(source):
            console.rank_output(node, source_rank(source), stream, data)
        if console.reader_gone:
            on_reader_gone()

    return console_observer(console, record, log)
