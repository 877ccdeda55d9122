"""Lines of the runner's own on a terminal, and problems: equal ones of many hosts are one."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import termios

import pytest

from runner.core.errors import Problem, fold_names
from runner.transport.endpoint import Endpoint, Kind
from runner.ui.output import coloured, message_text
from runner.ui.problems import render_problems

COMMAND = "python -m runner attach 0314-1592-digits-65a3"
TEXT = f"note: {'word ' * 30}\nplain {'word ' * 30}\n  it outlives the terminal: {COMMAND}"


def test_lines_fit_a_terminal_and_its_notes_are_dim(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command stays whole; where colours are not wanted, there are none."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", 24, 60, 0, 0))
    shown = message_text(TEXT, theirs)
    monkeypatch.setenv("NO_COLOR", "1")
    grey = message_text(TEXT, theirs)
    os.close(ours)
    os.close(theirs)

    assert "\x1b" not in grey
    assert all(len(line) < 60 for line in grey.split("\n"))
    assert grey.split("\n")[-1].endswith(COMMAND)
    dim, rest = grey.split("\nplain", 1)
    assert shown == f"\x1b[2m{dim}\x1b[0m\nplain{rest}"


def test_warnings_and_errors_are_coloured_and_their_hints_dim() -> None:
    """The same in `check` and in a launch."""
    hint = "\n    try this"
    assert coloured(f"error: a\n  b{hint}\nwarning: c\nplain{hint}") == (
        f"\x1b[1;31merror\x1b[0m: a\n  b\x1b[2m{hint}\x1b[0m\n"
        f"\x1b[33mwarning\x1b[0m: c\x1b[2m\x1b[0m\nplain{hint}"
    )


@pytest.mark.parametrize(
    ("names", "expected"),
    [
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


def login(number: int) -> Endpoint:
    address = f"10.0.0.{number}"
    return Endpoint(f"gpu{number}", address, host=address, user="ada")


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


def test_the_words_of_a_problem_are_not_read() -> None:
    """What another module words as a login does stays as it is."""
    equal = [Problem(n, "the store on port 9 is taken", "try by hand: ss -lt") for n in ("a", "b")]
    told = "error: a,b: the store on port 9 is taken\n    try by hand: ss -lt"
    assert render_problems(equal) == told
