"""Confirmation: what a verb is about to end or remove is named, and perhaps asked about first."""

from __future__ import annotations

import select
import sys
from collections.abc import Callable, Sequence

from runner.control.record import run_index
from runner.core.errors import ConfigError, Interrupted, Problem
from runner.core.model.run_info import RunInfo
from runner.core.text import counted
from runner.ui.reports.run_table import describe_run
from runner.workflows.host_pool import HostPool

POLL_S = 0.1


def confirm(pool: HostPool, verb: str, runs: Sequence[RunInfo], *, yes: bool) -> None:
    """Name the runs that are about to be ended or removed; ask about those not on record here.

    `yes` is the answer to that question, as without a terminal there must be one.

    Raises:
        ConfigError: There is no terminal to ask on, and no answer was given.
        Interrupted: The answer is no.
    """
    for run in runs:
        pool.console.message(f"{verb}: {describe_run(run)}")
    unknown = [run for run in runs if run_index.record_of(run) is None]
    if not unknown or yes:
        return
    which = f"{counted(len(unknown), 'run')} without a record on this machine"
    ask(f"{verb} {which}", "\n".join(map(describe_run, unknown)), pool.console.message, pool)


def ask(action: str, details: str, say: Callable[[str], None], pool: HostPool | None) -> None:
    """Ask whether to do something, while the hosts of a pool are kept in touch.

    Raises:
        ConfigError: There is no terminal to ask on; the error has the details.
        Interrupted: The answer is no.
    """
    if sys.stdin is None or not sys.stdin.isatty():
        message = f"there is no terminal to ask whether to {action}"
        raise ConfigError([Problem("--yes", message, f"{details}\n--yes is the answer")])
    say(f"{action}? Type y or n, and Enter (n)")
    try:
        while pool and not select.select([sys.stdin], [], [], 0)[0]:
            pool.poll_for_stop(POLL_S)
    except Interrupted as error:
        raise Interrupted(error.exit_code, "interrupted; nothing was changed") from None
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise Interrupted(130, "nothing was changed")
