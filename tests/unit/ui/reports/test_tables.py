"""Tables of the verbs."""

from __future__ import annotations

import pytest

from runner.core.errors import Problem
from runner.core.model.results import PullResult
from runner.core.protocol.events import Event, ProgressResumed, Stalled
from runner.ui.reports import tables
from runner.ui.reports.report import code_name
from runner.ui.reports.tables import PushResult
from tests.golden.builders import plan


def test_deploy_says_which_release_is_where() -> None:
    """Hosts that were sent the same are one line."""
    result = PushResult(
        release="0123456789abcdef",
        commit="abcdef0123456789abcdef0123456789abcdef01+",
        files=1234,
        size=2_500_000,
        seconds=1.5,
        sent={"gpu1": 800_000, "gpu2": None, "gpu3": 800_000, "gpu4": 0},
    )

    assert tables.render_push(result).split("\n") == [
        code_name(result.release, result.commit),
        "  1,234 files, 2.5 MB",
        "  gpu[1,3]  stored, 800.0 kB sent",
        "  gpu2      had it",
        "  gpu4      stored, 0 B sent",
    ]


def test_a_few_lines_say_what_came() -> None:
    """Nodes with as many files as one."""
    pulled = {
        "gpu1": PullResult(
            new_count=5, fetched_bytes=3_000_000, is_finished=True, notes=["pipe: is neither"]
        ),
        "gpu2": PullResult(
            new_count=5, fetched_bytes=400_000, is_finished=True, omitted_count=1200
        ),
        "gpu3": PullResult(
            new_count=2, existing_count=1, failed_count=23, problems=[Problem("gpu3", "x")] * 20
        ),
    }
    assert tables.render_pull(pulled, "runs/x") == (
        "pulled 12 files, 3.4 MB, into runs/x (gpu[1-2] 5 each, gpu3 2)\n"
        "  gpu1: pipe: is neither\n"
        "  gpu2: 1,200 more were left out: too many for one pull\n"
        "  gpu3: 3 files more could not be fetched"
    )


@pytest.mark.parametrize(
    ("history", "told"),
    [
        ("a+ a- a+ b+", "+"),
        ("a+ b+ a- a+", "+-+"),
        ("b+ a+ a- b- a+", "+-"),
    ],
)
def test_a_stall_is_reported_once_all_hosts_have_seen_it(history: str, told: str) -> None:
    """One host alone may see a short progress; the record of one is read before another's."""
    messages: list[str] = []
    reporter = tables.StallReporter(plan(1, 1), messages.append, lambda _: "")
    for step in history.split():
        body = Stalled(2.0, problem="no answer") if step[1] == "+" else ProgressResumed()
        reporter.on_event(Event("run", step[0], 0, 0, 0.0, 0.0, body))
    signs = {"no progress on any rank": "+", "the run makes progress a": "-"}
    assert "".join(signs.get(text[:24].rstrip(), "") for text in messages) == told
