"""Problems as a person reads them: equal ones of many hosts are one."""

from __future__ import annotations

import pytest

from runner.core.errors import Problem
from runner.core.model.results import Finding, Level
from runner.transport.endpoint import Endpoint
from runner.transport.failures import Failures, Kind
from runner.ui.layout import fold_names
from runner.ui.problems import render_problems, warning_lines


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["gpu1", "gpu1"], "gpu1"),
        (["gpu1", "gpu2", "gpu3", "gpu7"], "gpu[1-3,7]"),
        (["gpu01", "gpu02"], "gpu[01-02]"),
        (["cluster.nodes.a1.gpus", "cluster.nodes.a2.gpus"], "cluster.nodes.a[1-2].gpus"),
        (["task.args.*", "task.b"], "task.args.*, task.b"),
        (["gpu[1", "gpu&2", "", "@x"], "gpu[1, gpu&2, , @x"),
    ],
)
def test_names_fold_into_ranges(names: list[str], expected: str) -> None:
    """Names fold as in ClusterShell; what only looks like its notation is left as it is."""
    assert fold_names(names) == expected


def login(number: int) -> Failures:
    address = f"10.0.0.{number}"
    return Failures(f"gpu{number}", Endpoint(name=address, host=address, user="ada"))


def test_problems_that_differ_in_their_hosts_are_one() -> None:
    """The example is that of the first; one alone stays as it is."""
    said = "said 10.0.0.{} is closed"
    off = [login(n).failed(Kind.NOT_NOW, said.format(n), "wait").problems[0] for n in (1, 2)]
    told = "error: gpu[1-2]: its port 22 said HOST is closed\n    wait\n    try by hand: ssh -v"
    assert render_problems(off) == f"{told} 10.0.0.1"
    told = (
        "error: gpu2: 10.0.0.2 port 22 said 10.0.0.2 is closed\n    wait\n    try by hand: ssh -v"
    )
    assert render_problems(off[1:]) == f"{told} 10.0.0.2"

    few = [Problem(n, f"cluster.nodes.{n}.gpus: asked for 4, the host has 2") for n in ("a", "b")]
    assert (
        render_problems(few) == "error: a,b: cluster.nodes.NODE.gpus: asked for 4, the host has 2"
    )
    assert render_problems(few[:1]) == "error: a: cluster.nodes.a.gpus: asked for 4, the host has 2"


def test_unknown_host_keys_are_one() -> None:
    """Each has to be compared."""
    told = [login(n).unknown_key(f"key{n}").problems[0] for n in (1, 2)]
    head, first, second, compare, trust = render_problems(told).splitlines()
    assert head == "error: gpu[1-2]: its port 22 shows a host key that is not known"
    assert first == "    gpu1: 10.0.0.1 port 22: key1"
    assert second == "    gpu2: 10.0.0.2 port 22: key2"
    assert compare.endswith(": ssh HOST")
    assert "accept-new" in trust


def test_the_words_of_a_problem_are_not_read() -> None:
    """What another module words as a login does stays as it is."""
    equal = [Problem(n, "the store on port 9 is taken", "try by hand: ss -lt") for n in ("a", "b")]
    told = "error: a,b: the store on port 9 is taken\n    try by hand: ss -lt"
    assert render_problems(equal) == told


@pytest.mark.promise(8)
def test_a_warning_of_a_launch_has_its_remedy() -> None:
    """In one line, of all hosts that have it."""
    full = [Finding(Level.WARNING, name, "/tmp is full", "set TMPDIR\nor wait") for name in "ab"]
    assert warning_lines({"tmp": full}) == ["a,b: /tmp is full; set TMPDIR"]
