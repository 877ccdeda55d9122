"""Sweeps of the command line, in this process: which runs they are, and how they end."""

from __future__ import annotations

import shlex

import pytest

from runner.core.errors import NotReady, Problem
from runner.core.launch_request import LaunchRequest
from runner.verbs.launching.sweep import launch_command
from tests.golden.here import Here

NOTE = "note: an edit of the code reaches later runs of this sweep; cluster.project=null "


def test_a_sweep_is_a_run_for_each_combination(here: Here) -> None:
    """Each with an id, a record and a place of its own; the code is the first that is not 0."""
    words = ("task=mine", "task.args.lr=1,2", "cluster=pair", "cluster.project=.", "-m")
    said = here(*words, job=lambda run: 3 if "task.args.lr=1" in run.overrides else 0)
    assert said.code == 3
    assert said.err.startswith(NOTE)
    assert [run.spec.task.words for run in said.runs] == [("--lr", "1"), ("--lr", "2")]
    assert [run.overrides[1] for run in said.runs] == ["task.args.lr=1", "task.args.lr=2"]
    assert len({run.run_dir for run in said.runs}) == 2
    places = [run.sweep for run in said.runs if run.sweep]
    assert len({place.sweep for place in places}) == 1
    assert [(place.number, place.count, place.changes) for place in places] == [
        (1, 2, ("task.args.lr=1",)),
        (2, 2, ("task.args.lr=2",)),
    ]
    names = [run.spec.run_id for run in said.runs]
    *_, first, second, last = said.err.splitlines()
    assert first.split()[:3] == [names[0], "task.args.lr=1", "3"]
    assert second.split()[:3] == [names[1], "task.args.lr=2", "0"]
    assert last == "1 of 2 runs succeeded"


def test_a_sweep_over_nothing_says_so(here: Here) -> None:
    """An argument of the program is one word, whatever is in it."""
    said = here("task=mine", "cluster=pair", "-m", "--", "--lr", "0.1,0.2")
    assert "no key has several values" in said.err
    assert [run.spec.task.words for run in said.runs] == [("--lr", "0.1,0.2")]


SWEEP = ("-m", "task=mine", "cluster=pair", "cluster.project=null", "task.args.lr=1,2,3")


@pytest.mark.parametrize(
    ("codes", "code", "started"),
    [((0, 0, 0), 0, 3), ((0, 1, 3), 1, 3), ((0, 130, 0), 130, 2), ((1, 5, 0), 5, 2)],
)
def test_a_sweep_ends_where_a_run_was_interrupted(
    codes: tuple[int, ...], code: int, started: int, here: Here
) -> None:
    """Or where something of it could not be stopped; a failed run does not end it."""
    left = iter(codes)
    said = here(*SWEEP, job=lambda _: next(left))
    assert (said.code, len(said.runs)) == (code, started)


def test_errors_of_a_run_are_printed_once(here: Here) -> None:
    """With the exit code they carry, and the next run follows; Ctrl-C is 130, and the end."""

    def refuse(_: LaunchRequest) -> int:
        raise NotReady([Problem("gpu1", "no torch", "install it"), Problem("gpu2", "no python")])

    def interrupt(_: LaunchRequest) -> int:
        raise KeyboardInterrupt

    said = here(*SWEEP, job=refuse)
    text = "error: gpu1: no torch\n    install it\nerror: gpu2: no python\n"
    assert (said.code, said.err.count(text)) == (3, 3)
    assert said.err.endswith("\n0 of 3 runs succeeded\n")
    said = here(*SWEEP, job=interrupt)
    assert (said.code, len(said.runs)) == (130, 1)
    assert said.err.endswith(f"  runner {' '.join(SWEEP[1:4])} task.args.lr=3\n")


@pytest.mark.parametrize(
    "words",
    [
        "cluster=pair task=mine task.args.lr=1,2 lost_s=20,30",
        "--config-dir conf cluster=pair task.script=t.py 'task.args.x=\"a, b\",[c,d]' -- --flag",
    ],
)
def test_the_rest_of_a_sweep_starts_as_printed(words: str, here: Here) -> None:
    """What is printed after Ctrl-C are the very runs that were not started."""
    asked = here("-m", *shlex.split(words)).runs
    assert len(asked) >= 2
    again = [here(*shlex.split(launch_command(run))[1:]).run for run in asked[1:]]
    assert [run.spec.task for run in again] == [run.spec.task for run in asked[1:]]
    assert [run.spec.lost_s for run in again] == [run.spec.lost_s for run in asked[1:]]
