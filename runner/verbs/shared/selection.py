"""Selection: the hosts and runs that a verb works on, by its common flags or by a record."""

from __future__ import annotations

import contextlib
import select
import sys
from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from runner.config.words import CONTACT_KEYS, chosen_cluster, hydra_value, is_ignored, key_of
from runner.control.record import run_index
from runner.control.record.launch_record import LATEST, OVERRIDES_FILE, read_launch
from runner.control.record.said_notes import unsaid
from runner.core.errors import ConfigError, Interrupted, Problem, fold_names
from runner.core.launch_request import LaunchRequest
from runner.core.remote_run import user_at_host
from runner.core.shell import line, this_program
from runner.core.wire.paths import is_run_id
from runner.core.wire.text import counted, join_some
from runner.ui.output import note

if TYPE_CHECKING:
    from runner.control.run.discovery import RunFinder
    from runner.control.run.hosts import HostPool
    from runner.core.wire.run_info import RunInfo

CONFIRM_POLL_S = 0.1


@dataclass(frozen=True)
class Selection:
    settings: tuple[str, ...] = ()  # KEY=VALUE, as in a launch
    config_dirs: tuple[str, ...] = ()
    verb: str = ""
    keys: Sequence[str] | None = None  # what the verb takes beside those that reach hosts

    @property
    def names_cluster(self) -> bool:
        return bool(chosen_cluster(self.settings))

    def compose(self, contact_keys: Collection[str] | None = None) -> LaunchRequest:
        """Compose the configuration, and print its notes; raise ConfigError with every problem.

        With `contact_keys`, only what reaches the hosts and these keys are resolved and judged.
        """
        from runner.config.compose import open_composer

        with open_composer(self.config_dirs) as composer:
            composed = composer.compose(self.settings, contact_keys)
        for text in composed.notes:
            note(text)
        _note_once(f"files of {composed.spec.cluster.name}", composed.file_notes)
        return replace(composed, config_dirs=self.config_dirs)

    def refuse_ignored_words(self) -> None:
        if self.keys is None:
            return
        taken = sorted({*CONTACT_KEYS, *self.keys})
        hint = f"it takes {', '.join(['cluster', *taken])}"
        message = f"{self.verb} does not use this key"
        ignored = [word for word in self.settings if is_ignored(word, taken)]
        if ignored:
            raise ConfigError([Problem(key_of(word), message, hint) for word in ignored])

    def contact(self, why: str = "") -> LaunchRequest:
        """Compose what the verb takes of a cluster; say which is the default, and why."""
        return self._with_note(self.compose(self.keys or ()), why)

    def contact_latest(self) -> LaunchRequest:
        """Return how the hosts are reached that are chosen, or those of this folder's last run."""
        folder = run_index.record_folder(LATEST)
        if folder is None or self.settings or self.config_dirs:
            return self.contact()
        return self._with_note(read_launch(folder), ", as in the last run")

    def contact_for_run(self, run: str) -> LaunchRequest:
        """Return how the hosts of a run are reached, with its id; "" for the latest one there.

        That is by the YAML of the cluster that is named, else by the run's record on this machine,
        changed by the words that are given.
        """
        _check_run_id(run)
        why = ""
        if not self.names_cluster:
            folder = record_of(run)
            if folder is not None:
                return self.contact_by_record(folder)
            why = f": {run} is not on record on this machine"
        request = self.contact(why)
        return replace(request, spec=replace(request.spec, run_id="" if run == LATEST else run))

    def contact_by_record(self, folder: Path) -> LaunchRequest:
        """Return how the hosts of a run on record are reached, changed by the words given."""
        recorded = read_launch(folder)
        if not self.settings and not self.config_dirs:
            return recorded
        if not (folder / OVERRIDES_FILE).exists():  # what hosts say is not composed
            message = f"run {recorded.spec.run_id} was not launched here, so no word changes it"
            typed = line(["--run", recorded.spec.run_id, *self.settings])
            hint = f"{this_program()} {self.verb} --cluster NAME {typed}"
            raise ConfigError([Problem(" ".join(self.settings), message, hint)])
        folders = tuple(dict.fromkeys((*self.config_dirs, *recorded.config_dirs)))
        words = (f"rerun={hydra_value(str(folder))}", *self.settings)
        changed = replace(self, settings=words, config_dirs=folders).compose(())
        return replace(
            changed,
            run_dir=folder,
            contact_words=tuple(word for word in changed.contact_words if word in self.settings),
            launched_at=recorded.launched_at,
        )

    def _with_note(self, request: LaunchRequest, why: str = "") -> LaunchRequest:
        """Say which hosts are contacted, where nobody has chosen them."""
        if not self.names_cluster:
            spec = request.spec
            where = f"{spec.cluster.name} ({fold_names([node.name for node in spec.nodes])})"
            text = f"on {where}{why}; --cluster NAME chooses another"
            _note_once(f"default cluster{why}", [text])
        return request


def record_of(run: str) -> Path | None:
    """Return the record of a run on this machine, "" for the latest one; None if it has none."""
    _check_run_id(run)
    found = run_index.records_of_word(run or LATEST)
    if not found and run in ("", LATEST):
        message = "no run was launched from this folder"
        hint = "--run ID names one, --cluster NAME takes your latest one there"
        raise ConfigError([Problem("--run", message, hint)])
    if len(found) > 1:
        names = join_some([folder.name for folder in found])
        raise ConfigError([Problem("--run", f"{run} is a sweep, of {names}", "name one of them")])
    return found[0] if found else None


def _note_once(subject: str, notes: Sequence[str]) -> None:
    for text in unsaid(subject, notes):
        note(text)


def _check_run_id(run: str) -> None:
    if run and not is_run_id(run):
        hint = f"`{this_program()} ps --all` lists the runs; or give latest"
        raise ConfigError([Problem("--run", f"{run!r} is not a run id", hint)])


def open_pool(composed: LaunchRequest) -> AbstractContextManager[HostPool]:
    from runner.control.run.hosts import open_host_pool
    from runner.ui.console.console import open_console

    names = [node.name for node in composed.spec.nodes]
    console = open_console(composed.spec.ui, None, names, b"")
    return open_host_pool(composed.spec, console)


@contextlib.contextmanager
def open_run_finder(
    composed: LaunchRequest, verb: str, *, plain: bool = False
) -> Iterator[RunFinder]:
    """Connect to the hosts of a cluster for one verb; at the end all is closed, the console too.

    The verb's name appears in `ps` on the hosts. With `plain` the console shows no states.
    If no host answers, that is `NotReady`.
    """
    from runner.control.run.discovery import RunFinder
    from runner.control.run.hosts import open_host_pool
    from runner.ui.console.console import Console, open_console

    if plain:
        console = Console(reader_gone_note=b"")
    else:
        names = [node.name for node in composed.spec.nodes]
        console = open_console(composed.spec.ui, composed.spec.console_ranks, names)
    with open_host_pool(replace(composed.spec, run_id=verb), console) as pool:
        yield RunFinder(pool, composed.selector)


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
    from runner.ui.reports.run_table import run_lines

    folders = {run.run_id: run_index.other_folder(run) for run in runs}
    for text in run_lines(runs, user_at_host(), folders):
        pool.console.message(f"{verb}: {text}")
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
            pool.poll_for_stop(CONFIRM_POLL_S)  # the hosts are kept in touch
    except Interrupted as error:
        raise Interrupted(error.exit_code, "interrupted; nothing was changed") from None
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise Interrupted(130, "nothing was changed")
