"""What a launch says of an attempt under way."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner.control.record.run_store import RunStore
from runner.control.run.reporters import AttemptReporter
from runner.core.wire.events import Event, ProgressResumed, Stalled
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
