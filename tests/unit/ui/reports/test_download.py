"""What a pull says of itself."""

from __future__ import annotations

from runner.control.record.download import Pulled
from runner.core.errors import Problem
from runner.ui.reports import download


def test_a_few_lines_say_what_came() -> None:
    """Nodes with as many files as one."""
    pulled = {
        "gpu1": Pulled(new=5, size=3_000_000, whole=True, notes=["pipe: is neither"]),
        "gpu2": Pulled(new=5, size=400_000, whole=True, left_out=1200),
        "gpu3": Pulled(new=2, there=1, failed=23, problems=[Problem("gpu3", "x")] * 20),
    }
    assert download.summary(pulled, "runs/x") == (
        "pulled 12 files, 3.4 MB, into runs/x (gpu[1-2] 5 each, gpu3 2)\n"
        "  gpu1: pipe: is neither\n"
        "  gpu2: 1,200 more are left out: too many for one pull\n"
        "  gpu3: 3 files more could not be had"
    )


def test_nothing_new_and_nothing_at_all() -> None:
    """Both are said in words."""
    there = {"gpu1": Pulled(there=3, whole=True), "gpu2": Pulled(there=1, whole=True)}
    assert download.summary(there, "runs/x") == "nothing new; 4 files in runs/x"
    assert download.summary({"gpu1": Pulled()}, "runs/x") == "nothing was pulled"
    one = {"gpu1": Pulled(new=1, size=5, whole=True)}
    assert download.summary(one, "runs/x") == "pulled 1 file, 5 B, into runs/x (gpu1)"


def test_the_advice_is_given_once() -> None:
    """With the last problem of each node."""
    problems = [Problem("gpu1", "a", "again"), Problem("gpu1", "b", "again")]
    told = download.problems({"gpu1": Pulled(problems=problems), "gpu2": Pulled()})
    assert told == [Problem("gpu1", "a"), Problem("gpu1", "b", "again")]
    assert (
        download.as_data({"gpu1": Pulled(problems=problems)})["gpu1"]["problems"][0]["what"] == "a"
    )
