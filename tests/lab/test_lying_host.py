"""Hosts that lie, over SSH: their agent's answers are altered on the way (`programs/liar.py`)."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.lab.lab import Lab
from tests.lab.launching import PROGRAMS, Launcher, Result

pytestmark = [pytest.mark.promise(12, 13)]

RUN = "run_id=liars"


@pytest.fixture
def lying(tmp_path: Path) -> Callable[[str], str]:
    """Return the override by which node2 tells a lie."""

    def override(lie: str) -> str:
        python = tmp_path / f"python-{lie}"
        words = f"{sys.executable} {PROGRAMS / 'liar.py'} node2 {lie}"
        python.write_text(f'#!/bin/sh\nexec {words} "$@"\n')
        python.chmod(0o755)
        return f"cluster.host_python={python}"

    return override


def is_printable(done: Result) -> bool:
    """Whether nothing that was printed acts upon a terminal."""
    return all(char.isprintable() or char == "\n" for char in done.out + done.err)


def test_events_of_another_node_or_run_are_not_believed(
    on_lab: Launcher, lying: Callable[[str], str]
) -> None:
    """They are counted and said once; the run is what the other events say."""
    ranks = on_lab.rank_overrides("print=ran")
    done = on_lab("cluster=lab", RUN, lying("others"), *ranks)
    assert done.code == 0, done
    assert done.err.count("node2: 3 lines of its events ignored: torn, or about another node") == 1
    assert {event["node"] for event in done.events} <= {"", "node1", "node2"}
    assert {event["run_id"] for event in done.events} == {"liars"}
    assert not list((done.folder / "logs").rglob("*9*"))


def test_what_a_host_words_does_not_act_upon_a_terminal(
    on_lab: Launcher, lying: Callable[[str], str]
) -> None:
    """In the list of runs: as text or as data; its sequences are shown, not sent."""
    assert on_lab("cluster=lab", RUN, *on_lab.rank_overrides("print=ran")).code == 0
    for words in (("ps", "--all"), ("ps", "--all", "--json"), ("why",)):
        told = on_lab(*words, "--cluster", "lab", lying("escapes"))
        assert told.code == 0, told
        assert is_printable(told), told
    told = on_lab("exec", "--cluster", "lab", lying("escapes"), "--", "true")
    assert "node2: odd\\x1b]0;owned" in told.out + told.err, told
    assert is_printable(told), told
    shown = on_lab("ps", "--all", "--cluster", "lab", "cluster.only=[node2]", lying("escapes"))
    assert "\\x1b]0;owned\\x07" in shown.out, shown


@pytest.mark.promise(2)
def test_no_host_proves_that_nothing_is_left_on_another(
    lab: Lab, on_lab: Launcher, lying: Callable[[str], str]
) -> None:
    """One says that it is node1, to which no packet goes: node1 is named, by code 5."""
    ranks = on_lab.rank_overrides("print=up", "wait=/tmp/go")
    assert on_lab("cluster=lab", RUN, "detach=true", *ranks).code == 0
    lab["node1"].unplug()
    try:
        told = on_lab("stop", "--run", "liars", "--cluster", "lab", lying("steals"))
    finally:
        lab["node1"].plug()
    assert told.code == 5, told
    assert "node1" in told.out + told.err, told
    assert on_lab("stop", "--run", "liars").code == 0
