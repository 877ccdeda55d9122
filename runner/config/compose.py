"""Composer: YAML and a command line become launch requests, by way of Hydra."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import hydra
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from omegaconf import OmegaConf, open_dict

from runner.config import rerun, words
from runner.config.arguments import drops_false, take_words
from runner.config.contact import CONTACT_KEYS, IF_RESOLVED, contact_words, is_among
from runner.config.errors import explain_error
from runner.config.hydra_session import open_hydra
from runner.config.kinds import Problems, suggest
from runner.config.layers import RECORD, Composed, layers_of, place_of, plain_values, unresolved
from runner.config.nodes import apply_words
from runner.config.resolve import (
    PROGRAM_KEYS,
    Context,
    new_run_id,
    no_such_key,
    program_name,
    resolve,
    unknown_keys,
)
from runner.config.source import (
    PRIMARY,
    SUFFIXES,
    ConfigFiles,
    YamlSource,
    chosen_groups,
    conf_folders,
    dump,
    shipped_folder,
)
from runner.core.errors import ConfigError, Problem
from runner.core.launch_request import LaunchRequest, SweepPlace
from runner.core.shell import expand_home, this_program
from runner.core.spec import GROUPS, Spec, keys_of

CONTACT_CHOICES = ("task=base", "rendezvous=static", "container=none")
"""Choices of files that always compose, for groups that reach no host."""

PROGRAM_WORDS = frozenset(f"task.{key}" for key in PROGRAM_KEYS)


@contextlib.contextmanager
def open_composer(
    config_dirs: Sequence[str] = (), arguments: Sequence[str] = (), *, for_launches: bool = False
) -> Iterator[Composer]:
    """Open a composer that looks for YAML in these folders, the user's own and the shipped one.

    The program gets `arguments` after its own. For launches somebody has to say what to run.
    """
    folders = conf_folders(config_dirs)
    with open_hydra(folders):
        yield Composer(ConfigFiles(folders), arguments, for_launches=for_launches)


class Composer:
    """Composes configurations, and says in our words what is wrong with one."""

    def __init__(self, files: ConfigFiles, arguments: Sequence[str], *, for_launches: bool) -> None:
        self.files = files
        self._arguments = arguments
        self._for_launches = for_launches
        self._run_ids: set[str] = set()

    def compose(
        self, typed: Sequence[str], contact_keys: Collection[str] | None = None
    ) -> LaunchRequest:
        """Compose one run, or raise a ConfigError with every problem.

        With `contact_keys`, only what reaches the hosts and these keys are resolved and judged.
        """
        try:
            composed = self.composed(typed)
        except ConfigError:
            if contact_keys is None:
                raise
            # A file of a launch alone may be wrong or missing.
            keys = {words.key_of(word) for word in typed}
            free = [word for word in CONTACT_CHOICES if words.key_of(word) not in keys]
            composed = self.composed([*free, *typed])
        return self._request(composed, contact_keys)

    def sweep(self, typed: Sequence[str]) -> list[LaunchRequest]:
        """Compose every run of a `--multirun`, or raise a ConfigError with every problem of all."""
        requests: list[LaunchRequest] = []
        problems: dict[Problem, str] = {}
        runs = words.runs_of_sweep(typed)
        for number, run in enumerate(runs, 1):
            try:
                requests.append(self.compose(run))
            except ConfigError as error:
                for problem in error.problems:
                    problems.setdefault(problem, f"in run {number}: {' '.join(run)}")
        if problems:
            found = [replace(p, hint=f"{p.hint}\n{run}".lstrip()) for p, run in problems.items()]
            raise ConfigError(found)
        if len({request.run_dir for request in requests}) < len(requests):
            message = "every run of a --multirun needs its own folder"
            raise ConfigError([Problem("run_dir", message, "leave out run_id and run_dir")])
        if len(requests) == 1:
            return requests
        sweep_id = new_run_id("sweep")
        common = set.intersection(*(set(request.overrides) for request in requests))
        placed = []
        for number, request in enumerate(requests, 1):
            changes = tuple(word for word in request.overrides if word not in common)
            place = SweepPlace(sweep_id, number, len(requests), changes)
            placed.append(replace(request, sweep=place))
        return placed

    def plain(self, typed: Sequence[str], *, is_resolved: bool) -> dict[str, Any]:
        """Return the configuration as plain data."""
        composed = self.composed(typed)
        take_words(composed.config, typed, self._arguments)
        if not is_resolved:
            return unresolved(composed.config)
        if composed.config.get("run_id") is None:
            composed.config.run_id = "RUN_ID"
        problems = Problems()
        values = plain_values(composed.config, "", problems)
        problems.raise_any()
        return dict(words.plain(values))

    def options(self, group: str) -> list[str]:
        """Return the files of a group, or the groups themselves for ""."""
        loader = GlobalHydra.instance().config_loader()
        return list(loader.get_group_options(group))

    def composed(self, typed: Sequence[str]) -> Composed:
        """Compose a configuration without judging its values."""
        typed = [self._by_name(word) for word in typed]
        self._refuse_unknown(typed)
        others, node_words = words.node_words(typed)
        record = self._record(typed)
        hydra_words = [words.to_hydra(word) for word in others]
        keys = {words.key_of(word) for word in typed}
        if record is None and "task" not in keys and _sets_program(typed):
            # A program without `task=` stands alone: nothing of the default task is kept.
            hydra_words.insert(0, "task=base")
        primary = RECORD if record else PRIMARY
        YamlSource.loaded.clear()
        if record:
            node = record.primary_config(keys)
            ConfigStore.instance().store(RECORD, node)
        try:
            config = hydra.compose(primary, hydra_words, return_hydra_config=True)
        except ConfigError:
            raise
        except Exception as error:
            if os.environ.get("HYDRA_FULL_ERROR") == "1":
                sys.excepthook(type(error), error, error.__traceback__)
            raise ConfigError([explain_error(error, self.files, typed)]) from error
        choices = dict(config.hydra.runtime.choices)
        with open_dict(config):
            del config["hydra"]
        OmegaConf.set_struct(config, value=False)
        apply_words(config, node_words)
        return Composed(config, primary, hydra_words, typed, choices, record)

    def _refuse_unknown(self, typed: Sequence[str]) -> None:
        """Refuse words of no section and no group, and settings of Hydra."""
        problems = Problems()
        legal = [*keys_of(Spec)]
        for word in typed:
            section = re.split(r"[./]", words.key_of(word))[0]
            is_group = any((folder / section).is_dir() for folder in self.files.folders)
            if section == "hydra":
                hint = "run_dir sets where records go, task.env variables, -m makes a sweep"
                problems.report(word, "this setting of Hydra has no effect on a launch", hint)
            elif section and section not in legal and not is_group:
                problems.append(no_such_key("", section, legal))
        problems.raise_any()

    def _by_name(self, word: str) -> str:
        """Return a word that chooses a file by its path as one that does so by its name."""
        group, equals, option = word.partition("=")
        if group in GROUPS and equals and option in ("", "null"):
            options = ", ".join(self.files.options(group))
            message = f"{group} takes the name of a file; there are {options}"
            raise ConfigError([Problem(word, message)])
        path = Path(expand_home(option))
        if group not in GROUPS or path.suffix not in SUFFIXES:
            return word
        if path.is_file():
            YamlSource.given[f"{group}/{path.stem}"] = path.absolute()
        elif "/" in option:
            others = [path.with_suffix(suffix) for suffix in SUFFIXES]
            hint = next((f"{group}={other}" for other in others if other.is_file()), "")
            hint = hint or suggest(path.stem, self.files.options(group), f"{group}=")
            raise ConfigError([Problem(word, "there is no such file", hint)])
        return f"{group}={path.stem}"

    def _record(self, typed: Sequence[str]) -> rerun.RecordedRun | None:
        named = [word.partition("=")[2] for word in typed if words.key_of(word) == rerun.KEY]
        if not named or named[-1] == "null":
            return None
        name = named[-1].strip("'\"")
        if not name or len(words.split_values(name)) > 1 or name[0] in "[{":
            message = "rerun names one run, such as rerun=latest"
            raise ConfigError([Problem(f"{rerun.KEY}={named[-1]}", message)])
        return rerun.find_record(name, Path.cwd())

    def _request(self, composed: Composed, contact_keys: Collection[str] | None) -> LaunchRequest:
        """Validate a composed configuration, and turn it into plain data."""
        config = composed.config
        record = composed.record
        cluster, task = self._names(composed)
        if contact_keys is None:
            take_words(config, composed.typed, self._arguments)
        if record:
            config[rerun.KEY] = record.plan.run_id
        if record and contact_keys is not None:
            config.run_id = record.plan.run_id
        if not OmegaConf.is_interpolation(config, "run_id") and config.get("run_id") is None:
            config.run_id = self._new_run_id(task)
        problems = Problems()
        try:
            values = self._values(composed, contact_keys, problems)
            context = Context(
                cluster=cluster,
                task=task,
                cwd=str(Path.cwd()),
                environ=os.environ,
                for_contact=contact_keys is not None,
            )
            spec = resolve(values, context, problems)
        except ConfigError as error:
            layers = layers_of(composed)
            located = [replace(p, subject=place_of(p.subject, layers)) for p in error.problems]
            raise ConfigError(located) from error
        typed = list(composed.typed)
        if self._arguments:
            typed += ["--", *self._arguments]
        notes: list[str] = []
        recorded_code = None
        if record and contact_keys is None:
            is_same = not _sets_program(composed.typed)
            recorded_code, notes = record.code_to_run(spec, typed, is_same_program=is_same)
        return LaunchRequest(
            spec=spec,
            run_dir=Path(Path.cwd(), expand_home(spec.run_dir)),
            config_yaml="" if contact_keys is not None else dump(unresolved(config)),
            notes=tuple(notes),
            file_notes=tuple(self._file_notes(spec)),
            overrides=tuple(typed),
            contact_words=contact_words(composed.typed, spec.cluster.name),
            recorded_code=recorded_code,
            record_hosts=record.hosts if record else (),
            names_program=self._names_program(composed),
        )

    def _names(self, composed: Composed) -> tuple[str, str]:
        """Return the names of the cluster and of the task."""
        record = composed.record
        cluster = composed.choices.get("cluster")
        if cluster is None:
            primary = YamlSource.loaded.get(PRIMARY)
            several = chosen_groups(primary).get("cluster") if primary else None
            if typed := words.chosen_cluster(composed.typed):
                several = words.split_values(typed.strip("[]"))
            if isinstance(several, list):  # Hydra does not tell which
                cluster = "+".join(several)
            elif record:
                cluster = record.plan.cluster
        task = composed.choices.get("task")
        if task in (None, "base"):
            task = program_name(plain_values(composed.config.task, "task", Problems()))
            if record and not _sets_program(composed.typed):
                task = record.plan.task
        return str(cluster or "cluster"), str(task)

    def _names_program(self, composed: Composed) -> bool:
        """Whether the user says what to run, here or in a file."""
        primary = YamlSource.loaded.get(PRIMARY)
        is_own = primary is not None and primary.path.parent != shipped_folder()
        return bool(
            composed.record
            or _sets_program(composed.typed)
            or (primary and is_own and "task" in chosen_groups(primary))
        )

    def _values(
        self, composed: Composed, contact_keys: Collection[str] | None, problems: Problems
    ) -> dict[str, Any]:
        """Return the composed values, resolved; with `contact_keys`, those that are needed."""
        config = composed.config
        if contact_keys is not None:
            optional = plain_values(config, "", Problems(), lambda key: is_among(key, IF_RESOLVED))
            keys = (*CONTACT_KEYS, *contact_keys)
            wanted = plain_values(config, "", problems, lambda key: is_among(key, keys))
            problems.raise_any()
            wanted["cluster"] = {**optional.get("cluster", {}), **wanted.get("cluster", {})}
            problems += unknown_keys({"cluster": dict.fromkeys(map(str, config.cluster))})
            return dict(wanted)
        values: dict[str, Any] = plain_values(config, "", problems)
        problems.raise_any()
        problems += unknown_keys(values)
        if self._for_launches and not self._names_program(composed):
            problems += self._default_task_problems(composed.choices.get("cluster"))
        if composed.record is None and values.get(rerun.KEY) is not None:
            example = f"such as {this_program()} {rerun.KEY}={values[rerun.KEY]}"
            problems.report(rerun.KEY, "is for the command line only", example)
        return values

    def _default_task_problems(self, cluster: Any) -> Iterator[Problem]:
        """Yield a problem unless the shipped default task is a first try: here, without YAML."""
        if cluster == "local" and not self.files.has_own:
            return
        tasks = self.files.options("task")
        own = self.files.options("cluster", own_only=True)
        chosen = own[0] if own and cluster == "local" else cluster
        command = f"{this_program()} cluster={chosen} task={tasks[0]}"
        hint = f"{command}\nor a program: task.script=train.py; conf/runner.yaml may choose for all"
        message = f"there is no task to launch; choose one of {', '.join(tasks)}"
        yield Problem("task", message, hint)

    def _file_notes(self, spec: Spec) -> Iterator[str]:
        """Yield what is said once of the files."""
        yield from self.files.shadows(sorted(YamlSource.loaded))
        if dropped := drops_false(spec.task):
            message = f"task.args.{dropped}: false is left out, as is each that is false"
            yield f"{message}; task.args_false=no makes --no-{dropped} of it"

    def _new_run_id(self, task: str) -> str:
        """Return an id that no other run of a sweep has."""
        while (run_id := new_run_id(task)) in self._run_ids:
            pass
        self._run_ids.add(run_id)
        return run_id


def _sets_program(typed: Sequence[str]) -> bool:
    """Return whether words say what to run."""
    for word in typed:
        key = words.key_of(word)
        if key == "task" or (key in PROGRAM_WORDS and not word.endswith(("=", "=null"))):
            return True
    return False
