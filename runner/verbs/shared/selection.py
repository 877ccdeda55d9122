"""Selection: the hosts that a verb works on, by its common flags or by the record of a run."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from runner.config.words import chosen_cluster, hydra_value, key_of
from runner.control.record import run_index
from runner.control.record.launch_record import LATEST, OVERRIDES_FILE, read_launch
from runner.control.record.said_notes import unsaid
from runner.core.errors import ConfigError, Problem
from runner.core.launch_request import LaunchRequest
from runner.core.shell import line, this_program
from runner.core.wire.paths import is_run_id
from runner.core.wire.text import join_some
from runner.ui.layout import fold_names
from runner.ui.output import note

if TYPE_CHECKING:
    from runner.config.compose import Composer
    from runner.control.run.discovery import RunFinder
    from runner.control.run.hosts import HostPool


@dataclass(frozen=True)
class Selection:
    """The hosts a verb works on, as its common flags choose them."""

    cluster: str = ""  # the default one
    settings: tuple[str, ...] = ()  # overrides, as in a launch
    config_dirs: tuple[str, ...] = ()
    verb: str = ""
    keys: Sequence[str] | None = None  # what the verb takes beside those that reach hosts

    @property
    def overrides(self) -> list[str]:
        """The overrides of a launch that the flags stand for."""
        cluster = [f"cluster={self.cluster}"] if self.cluster else []
        return [*cluster, *self.settings]

    @property
    def names_cluster(self) -> bool:
        """Whether a cluster is chosen."""
        return bool(self.cluster or chosen_cluster(self.settings))

    def composer(self) -> AbstractContextManager[Composer]:
        """Open the composer with these folders."""
        from runner.config.compose import open_composer

        return open_composer(self.config_dirs)

    def compose(self, contact_keys: Collection[str] | None = None) -> LaunchRequest:
        """Compose the configuration, and print its notes; raise ConfigError with every problem.

        With `contact_keys`, only what reaches the hosts and these keys are resolved and judged.
        """
        with self.composer() as composer:
            composed = composer.compose(self.overrides, contact_keys)
        for text in composed.notes:
            note(text)
        _note_once(f"files of {composed.spec.cluster.name}", composed.file_notes)
        return replace(composed, config_dirs=self.config_dirs)

    def refuse_ignored_words(self) -> None:
        """Raise ConfigError for words that set keys which the verb does not take."""
        if self.keys is None or not self.settings:
            return
        from runner.config.contact import ignored_words

        ignored, taken = ignored_words(self.settings, self.keys)
        hint = f"it takes {', '.join(taken)}"
        message = f"{self.verb} does not use this key"
        problems = [Problem(key_of(word), message, hint) for word in ignored]
        if problems:
            raise ConfigError(problems)

    def contact(self) -> LaunchRequest:
        """Compose what the verb takes of a cluster; say which is the default."""
        return self._with_note(self.compose(self.keys or ()))

    def contact_latest(self) -> LaunchRequest:
        """Return how the hosts are reached that are chosen, or those of this folder's last run."""
        folder = run_index.record_folder(LATEST)
        if folder is None or self.overrides or self.config_dirs:
            return self.contact()
        return self._with_note(self.contact_by_record(folder), ", as in the last run")

    def contact_for_run(self, run: str) -> LaunchRequest:
        """Return how the hosts of a run are reached, with its id; "" for the latest one there.

        That is by the YAML of the cluster that is named, else by the run's record on this machine,
        changed by the words that are given. The beginning of an id will do if one run on record
        has it.
        """
        run_id = "" if run == LATEST else run
        if self.names_cluster:
            _check_run_id(run)
            return _about_run(self.contact(), run_id)
        folder = record_of(run)
        if folder is not None:
            return self.contact_by_record(folder)
        why = f": {run} is not on record on this machine"
        return _about_run(self._with_note(self.compose(()), why), run_id)

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
    """Return the record of a run on this machine, "" for the latest one; None if it has none.

    The beginning of an id will do as for `contact_for_run`.
    """
    _check_run_id(run)
    found = run_index.records_of_word(run or LATEST)
    if not found and run in ("", LATEST):
        message = "no run was launched from this folder"
        hint = "--run ID names one, --cluster NAME takes your latest one there"
        raise ConfigError([Problem("--run", message, hint)])
    if len(found) > 1:
        names = join_some([folder.name for folder in found])
        raise ConfigError([Problem("--run", f"{run} is a sweep, of {names}", "name one of them")])
    if found and run not in ("", LATEST, found[0].name):
        name = run_index.records().get(found[0], run)
        if name != run:
            note(f"{run} is {name}")
    return found[0] if found else None


def _note_once(subject: str, notes: Sequence[str]) -> None:
    for text in unsaid(subject, notes):
        note(text)


def _check_run_id(run: str) -> None:
    if run and not is_run_id(run):
        hint = f"`{this_program()} ps --all` lists the runs; or give latest"
        raise ConfigError([Problem("--run", f"{run!r} is not a run id", hint)])


def _about_run(request: LaunchRequest, run_id: str) -> LaunchRequest:
    return replace(request, spec=replace(request.spec, run_id=run_id))


def open_pool(composed: LaunchRequest) -> AbstractContextManager[HostPool]:
    """Open the host pool of a verb, with a console."""
    from runner.control.run.hosts import open_host_pool
    from runner.ui.console.console import open_console

    names = [node.name for node in composed.spec.nodes]
    console = open_console(composed.spec.ui, None, names, b"")
    return open_host_pool(composed.spec, console, fold_names)


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
    with open_host_pool(replace(composed.spec, run_id=verb), console, fold_names) as pool:
        yield RunFinder(pool, composed.selector)
