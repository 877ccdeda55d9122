"""Report of a pull."""

from __future__ import annotations

from runner.core.errors import Problem
from runner.core.model.results import PullResult
from runner.ui.reports import download


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
    assert download.summary(pulled, "runs/x") == (
        "pulled 12 files, 3.4 MB, into runs/x (gpu[1-2] 5 each, gpu3 2)\n"
        "  gpu1: pipe: is neither\n"
        "  gpu2: 1,200 more were left out: too many for one pull\n"
        "  gpu3: 3 files more could not be fetched"
    )


def test_nothing_new_and_nothing_at_all() -> None:
    """Both are said in words."""
    there = {
        "gpu1": PullResult(existing_count=3, is_finished=True),
        "gpu2": PullResult(existing_count=1, is_finished=True),
    }
    assert download.summary(there, "runs/x") == "nothing new; 4 files in runs/x"
    assert download.summary({"gpu1": PullResult()}, "runs/x") == "nothing was pulled"
    one = {"gpu1": PullResult(new_count=1, fetched_bytes=5, is_finished=True)}
    assert download.summary(one, "runs/x") == "pulled 1 file, 5 B, into runs/x (gpu1)"


def test_the_advice_is_given_once() -> None:
    """With the last problem of each node."""
    problems = [Problem("gpu1", "a", "again"), Problem("gpu1", "b", "again")]
    told = download.problems({"gpu1": PullResult(problems=problems), "gpu2": PullResult()})
    assert told == [Problem("gpu1", "a"), Problem("gpu1", "b", "again")]
    assert (
        download.as_data({"gpu1": PullResult(problems=problems)})["gpu1"]["problems"][0]["message"]
        == "a"
    )
