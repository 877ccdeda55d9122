"""Answers of hosts to a command."""

from __future__ import annotations

import signal
from dataclasses import replace

import pytest

from runner.core.model.results import CommandResult
from runner.ui.reports import answers


def answer(
    node: str, code: int | None = 0, out: bytes = b"", err: bytes = b"", problem: str = ""
) -> CommandResult:
    return CommandResult(node, code, bytearray(out), bytearray(err), problem)


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
    assert answers.answers_exit_code(given) == code


def test_interrupted_command_is_130_if_nothing_is_left() -> None:
    """What may be left somewhere is 5, and beats all."""
    lost = replace(answer("b", None, problem="lost: x"), unverified=True, lost=True)

    assert answers.answers_exit_code([answer("a", -9)], signal.SIGINT) == 130
    assert answers.answers_exit_code([answer("a", -9), lost], signal.SIGINT) == 5
    assert answers.answers_exit_code([answer("a", 0), lost]) == 4
