"""Answers of hosts to a command: its failures, its outcomes as data, and its exit code."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from runner.core.errors import SIGNAL_EXIT_BASE
from runner.core.model.results import CommandResult
from runner.core.outcome.verdict import LOST_CODE, STUCK_CODE
from runner.core.text import describe_exit
from runner.ui.layout import fold_names, group_names

EXIT_NOT_STARTED = 127


def render_failures(results: Iterable[CommandResult]) -> str:
    """Return how a command failed, with equal failures of hosts merged; "" if it did nowhere."""
    groups = group_names((each.node, _status_text(each)) for each in results)
    groups.pop("", None)
    return "\n".join(f"{fold_names(names)}{status}" for status, names in groups.items())


def _status_text(result: CommandResult) -> str:
    if result.problem:
        return f": {result.problem}"
    code = result.exit_code or 0
    if code < 0:
        return f": {describe_exit(None, -code).removeprefix('was ')}"
    return f": exit {code}" if code else ""


def answers_as_data(results: Iterable[CommandResult]) -> dict[str, Any]:
    """Return the outcomes of a command as data for a program."""
    return {
        result.node: {
            "code": result.exit_code,
            "out": result.stdout.decode(errors="replace"),
            "err": result.stderr.decode(errors="replace"),
            "problem": result.problem,
            "dropped": result.truncated,
        }
        for result in results
    }


def answers_exit_code(results: Sequence[CommandResult], signum: int = 0) -> int:
    """Return the exit code: the highest of the commands', unless something worse happened.

    That is 5 if processes may be left, 128 + `signum` after a signal to us, and 4 for a lost host.
    """
    codes = [0]
    for result in results:
        if result.unverified and (signum or not result.lost):
            return STUCK_CODE
        code = EXIT_NOT_STARTED if result.exit_code is None else result.exit_code
        codes.append(SIGNAL_EXIT_BASE - code if code < 0 else code)
    if signum:
        return SIGNAL_EXIT_BASE + signum
    return LOST_CODE if any(result.lost for result in results) else max(codes)
