"""Tables of the verbs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from runner.core.errors import Problem
from runner.core.model.results import Origin, PullResult, Setting
from runner.core.protocol.events import Event, ProgressResumed, Stalled
from runner.ui.reports import tables
from runner.ui.reports.report import code_name
from runner.ui.reports.tables import CleanResult, PushResult
from tests.golden.builders import plan


def test_deploy_says_which_release_is_where() -> None:
    """Hosts that were sent the same are one line."""
    result = PushResult(
        release="0123456789abcdef",
        commit="abcdef0123456789abcdef0123456789abcdef01+",
        files=1234,
        size=2_500_000,
        seconds=1.5,
        sent={"gpu1": 800_000, "gpu2": None, "gpu3": 800_000, "gpu4": 0, "gpu5": 0},
        holders={"gpu5": "gpu1", **dict.fromkeys(["gpu1", "gpu2", "gpu3", "gpu4"], "")},
    )

    assert tables.render_push(result).split("\n") == [
        code_name(result.release, result.commit),
        "  1,234 files, 2.5 MB",
        "  gpu[1,3]  stored, 800.0 kB sent",
        "  gpu2      had it",
        "  gpu4      stored, 0 B sent",
        "  gpu5      stored, from another host",
    ]


def test_deploy_without_git_names_no_commit() -> None:
    """One file is no plural either."""
    sent, holders = {"a": None}, {"a": ""}
    result = PushResult("0" * 16, "", files=1, size=1, seconds=0.0, sent=sent, holders=holders)

    assert tables.render_push(result) == f"release {'0' * 16}\n  1 file, 1 B\n  a  had it"


def test_origin_names_winner_and_losers() -> None:
    """Why a value is what it is, and what it would be otherwise."""
    given = [
        Origin(
            "task.args.lr",
            "0.1",
            written="${base}",
            settings=(
                Setting("command line", "task.args.lr", "0.1"),
                Setting("conf/task/x.yaml:3", "args.lr", "0.5"),
            ),
        ),
        Origin("cluster.user", "", "", (), problem="it refers to nothing", meaning="a name (text)"),
    ]

    assert tables.render_origins(given).split("\n") == [
        "task.args.lr: 0.1",
        "  written as ${base}",
        "  command line",
        "  conf/task/x.yaml:3 as args.lr (overridden: 0.5)",
        "cluster.user: it refers to nothing",
        "  # a name (text)",
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


def test_nothing_new_and_nothing_at_all() -> None:
    """Both are said in words."""
    there = {
        "gpu1": PullResult(existing_count=3, is_finished=True),
        "gpu2": PullResult(existing_count=1, is_finished=True),
    }
    assert tables.render_pull(there, "runs/x") == "nothing new; 4 files in runs/x"
    assert tables.render_pull({"gpu1": PullResult()}, "runs/x") == "nothing was pulled"
    assert tables.render_pull(there, "runs/x", ["*.pth", "out"]).splitlines() == [
        "nothing new; 4 files in runs/x",
        "  no file that is new or changed matched task.outputs: *.pth, out",
    ]
    there["gpu2"].output_count = 1
    assert "matched" not in tables.render_pull(there, "runs/x", ["*.pth", "out"])
    one = {"gpu1": PullResult(new_count=1, fetched_bytes=5, is_finished=True)}
    assert tables.render_pull(one, "runs/x") == "pulled 1 file, 5 B, into runs/x (gpu1)"


def test_outputs_that_no_key_names_stay_on_the_hosts() -> None:
    """In the working copies, or in the project's folder if that was not pushed."""
    made = plan(1, 1)
    first, second = (replace(share, cwd="/p") for share in made.nodes)
    stays = "  task.outputs names nothing: what the ranks wrote stays"
    work = f"{made.nodes[0].order.workdir}/runs/{made.run_id}/NODE/work"
    told = tables.outputs_left(replace(made, release="abc"))
    assert told == f"{stays} in {work} on each host"
    for nodes, where in (
        ((first, second), "in /p on each host"),
        ((first,), f"in /p on {first.node}"),
        ((first, replace(second, cwd="/q")), "on each host"),
    ):
        told = tables.outputs_left(replace(made, release="", nodes=nodes))
        assert told == f"{stays} {where}"
    assert tables.outputs_left(replace(made, outputs=("*.pt",))) == ""


@pytest.mark.parametrize(
    ("folders", "into"),
    [
        ([{"outputs/gpu1"}], "runs/x/outputs/gpu1"),
        ([{"outputs/gpu1"}, {"outputs/gpu2"}], "runs/x/outputs"),
        ([{"outputs/gpu1", "logs/gpu1"}], "runs/x"),
    ],
)
def test_the_folder_that_is_named_is_the_one(folders: list[set[str]], into: str) -> None:
    """The innermost that has all of it."""
    results = {f"gpu{n}": PullResult(new_count=1, folders=each) for n, each in enumerate(folders)}
    assert f", into {into} (" in tables.render_pull(results, "runs/x")


def test_the_advice_is_given_once() -> None:
    """With the last problem of each node."""
    problems = [Problem("gpu1", "a", "again"), Problem("gpu1", "b", "again")]
    told = tables.pull_problems({"gpu1": PullResult(problems=problems), "gpu2": PullResult()})
    assert told == [Problem("gpu1", "a"), Problem("gpu1", "b", "again")]


def test_a_clean_that_finds_nothing_names_the_age() -> None:
    """Which may be the default, that nobody typed; where something was removed it goes unsaid."""
    nothing, one = CleanResult((), (), (), 0), CleanResult(("r",), (), (), 9)
    assert tables.render_clean({"a": nothing}, {}, "7d", dry_run=False).splitlines() == [
        "a: 0 runs and 0 releases removed, 0 B",
        "nothing unused is older than 7d; --older-than 0s is whatever has ended",
    ]
    assert "older" not in tables.render_clean({"a": one, "b": nothing}, {}, "7d", dry_run=False)


@pytest.mark.parametrize(
    ("history", "told"),
    [
        ("a+", ""),
        ("a+ b+", "+"),
        ("a+ a- a+ b+", "+"),
        ("a+ b+ a- a+", "+-+"),
        ("a+ a- a+ b+ b- b+", "+-+"),
        ("a+ b+ a- b-", "+-"),
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
