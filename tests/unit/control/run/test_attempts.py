"""What a launch says of an attempt under way."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from unittest.mock import MagicMock

import pytest

from runner.control.record.run_store import RunStore
from runner.control.run.reporters import AttemptReporter
from runner.core.errors import Problem
from runner.core.outcome.stacks import StackReport
from runner.core.wire.events import Event, ProgressResumed, Stalled
from runner.core.wire.paths import DUMP_END, DUMP_HEADER, STACKS_LOG
from runner.ui.console.console import Console
from tests.golden.builders import plan


@pytest.mark.parametrize(
    ("history", "told"),
    [
        ("a+ a- a+ b+", "+"),
        ("a+ b+ a- a+", "+-+"),
        ("b+ a+ a- b- a+", "+-"),
    ],
)
def test_a_stall_is_reported_once_all_hosts_have_seen_it(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], history: str, told: str
) -> None:
    """One host alone may see a short progress; the record of one is read before another's."""
    console = Console()
    reporter = AttemptReporter(plan(1, 1), console, RunStore(tmp_path), lambda *_: "")
    for step in history.split():
        body = Stalled(2.0, problem="no answer") if step[1] == "+" else ProgressResumed()
        reporter.record(Event("run", step[0], 0, 0, 0.0, 0.0, body))
    signs = {"no progress on any rank": "+", "the run makes progress a": "-"}
    console.close()
    lines = capfd.readouterr().err.splitlines()
    assert "".join(signs.get(text[:24].rstrip(), "") for text in lines) == told


@pytest.mark.promise(12)
def test_of_a_log_without_an_end_the_last_stacks_are_read(tmp_path: Path) -> None:
    """A host may send as much of it as the disk here takes; memory is less."""
    store = RunStore(tmp_path)
    shown: list[StackReport] = []

    def show(report: StackReport, _: Sequence[Problem]) -> str:
        shown.append(report)
        return ""

    reporter = AttemptReporter(plan(1), MagicMock(), store, show)
    reporter.record(Event("run", "a", 0, 0, 0.0, 0.0, Stalled(2.0, dump_time="12:00")))
    log = store.logs / "a" / "stacks.out"
    log.parent.mkdir(parents=True)
    with log.open("wb") as file:
        file.truncate(200 << 20)
    tracemalloc.start()
    dump = DUMP_HEADER.format(when="12:00", why="x") + DUMP_END
    reporter.log("a", STACKS_LOG, "out", 200 << 20, f"\n{dump}".encode())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(shown) == 1
    assert peak < 100 << 20
