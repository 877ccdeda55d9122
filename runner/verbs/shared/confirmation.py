"""Confirmation: what a verb is about to end or remove is named, and perhaps asked about first."""

from __future__ import annotations

import select
import sys
from collections.abc import Sequence

from runner.control.attempt.stop import user_at_host
from runner.control.record import run_index
from runner.control.run.hosts import HostPool
from runner.core.errors import ConfigError, Interrupted, Problem
from runner.core.wire.run_info import RunInfo
from runner.core.wire.text import counted
from runner.ui.reports.run_table import run_lines

POLL_S = 0.1


def confirm(
    pool: HostPool, verb: str, runs: Sequence[RunInfo], *, yes: bool, is_latest: bool = False
) -> None:
    """Name the runs that are about to be ended or removed; ask about those not launched here.

    With `is_latest` the run was not named by its id: one of another folder is asked about as well.
    `yes` is the answer to that question, as without a terminal there must be one.

    Raises:
        ConfigError: There is no terminal to ask on, and no answer was given.
        Interrupted: The answer is no.
    """
    folders = {run.run_id: run_index.other_folder(run) for run in runs}
    for line in run_lines(runs, user_at_host(), folders):
        pool.console.message(f"{verb}: {line}")
    asked = [run for run in runs if not run_index.launched_from(run)]
    which = f"{counted(len(asked), 'run')} without a launch on record on this machine"
    if is_latest and not asked:
        asked = [run for run in runs if folders[run.run_id]]
        which = "the latest run, which was launched from another folder"
    if yes or not asked:
        return
    if sys.stdin is None or not sys.stdin.isatty():
        details = "\n".join(run_lines(asked, user_at_host(), folders))
        message = f"there is no terminal to ask whether to {verb} {which}"
        raise ConfigError([Problem("--yes", message, f"{details}\n--yes is the answer")])
    pool.console.message(f"{verb} {which}? Type y or n, and Enter (n)")
    try:
        while not select.select([sys.stdin], [], [], 0)[0]:
            pool.poll_for_stop(POLL_S)  # the hosts are kept in touch
    except Interrupted as error:
        raise Interrupted(error.exit_code, "interrupted; nothing was changed") from None
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise Interrupted(130, "nothing was changed")
