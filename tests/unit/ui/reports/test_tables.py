"""Tables of results: answers of hosts to a command, and stacks of ranks."""

from __future__ import annotations

import signal
from dataclasses import replace

import pytest

from runner.core.model.results import CommandResult
from runner.core.outcome.stacks import Stack, StackGroup, StackReport
from runner.ui.reports.tables import render_answers, render_stacks
from runner.verbs.exec import exit_code


def answer(
    node: str, code: int | None = 0, out: bytes = b"", err: bytes = b"", problem: str = ""
) -> CommandResult:
    return CommandResult(node, code, bytearray(out), bytearray(err), problem)


def test_equal_answers_are_one() -> None:
    """The one host that differs stands out; nothing acts upon a terminal."""
    given = [
        answer("gpu1", out=b"535.1\n"),
        answer("gpu2", out=b"470.2\n", err=b"old!\n"),
        answer("gpu3", out=b"535.1\n"),
        answer("gpu4", 1, out=b"535.1\n"),
        answer("gpu5"),
        answer("gpu6", out=b"\x1b[31mred\x1b[0m \x1b]0;owned\x07\x1b[2Jend\n"),
    ]

    assert render_answers(given).split("\n") == [
        "── gpu[1,3] (2) ──",
        "535.1",
        "── gpu2 ──",
        "470.2",
        "old!",
        "── gpu4: exit 1 ──",
        "535.1",
        "── gpu5 ──",
        "── gpu6 ──",
        "red end",
    ]


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ([answer("a"), answer("b")], 0),
        ([answer("a", -9), answer("b", 7)], 137),
        ([answer("a", None, problem="cannot be started: x")], 127),
        ([answer("a", 7), replace(answer("b", None, problem="lost: x"), lost=True)], 4),
        ([answer("a", 7), answer("b", None, problem="lost, says the host itself")], 127),
        (
            [
                replace(answer("a", -9, problem="cannot be killed: PID 7"), unverified=True),
                replace(answer("b", 0, problem="lost"), lost=True),
            ],
            5,
        ),
    ],
)
def test_worst_host_decides_the_exit_code(given: list[CommandResult], code: int) -> None:
    """A script sees whether it may go on."""
    assert exit_code(given) == code


def test_interrupted_command_is_130_if_nothing_is_left() -> None:
    """What may be left somewhere is 5, and beats all."""
    lost = replace(answer("b", None, problem="lost: x"), unverified=True, lost=True)

    assert exit_code([answer("a", -9)], signal.SIGINT) == 130
    assert exit_code([answer("a", -9), lost], signal.SIGINT) == 5
    assert exit_code([answer("a", 0), lost]) == 4


def test_a_rank_without_a_stack_says_why() -> None:
    """It may have ended before its program was known."""
    for program, told in (("bash", ", bash"), ("", "")):
        group = StackGroup((1,), Stack(1, 7, program, "nothing: it is gone"))
        report = StackReport((group,), (), (), {1: "gpu2"})
        assert render_stacks(report, []).endswith(f"  rank 1 on gpu2{told}: nothing: it is gone")
