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
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.config_store import ConfigStore
from hydra.core.plugins import Plugins
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import OmegaConf, open_dict

from runner.config import rerun, words
from runner.config.arguments import absent, drops_false, set_argument, take_words
from runner.config.kinds import Problems, unknown_key
from runner.config.layers import Composed
from runner.config.nodes import set_on_nodes
from runner.config.refusals import as_config, plain_values, refusal
from runner.config.resolve import (
    PROGRAM_KEYS,
    Context,
    new_run_id,
    program_name,
    resolve,
)
from runner.config.source import (
    NOT_OF_HYDRA,
    PRIMARY,
    SCHEMA,
    SUFFIXES,
    ConfigFiles,
    YamlSource,
    chosen_groups,
    conf_folders,
    dump,
    shipped_folder,
)
from runner.core.errors import ConfigError, Problem, suggest
from runner.core.launch_request import LaunchRequest, SweepPlace
from runner.core.shell import expand_home, this_program
from runner.core.spec import (
    GROUPS,
    Cluster,
    Spec,
    keys_of,
    section_of,
    written_default,
    written_defaults,
)

RECORD = "_rerun_"
"""The name of a record for Hydra; no file of a user has it."""

CONTACT_CHOICES = ("task=base", "rendezvous=static", "container=none")
"""Choices for groups that reach no host: a file of a launch alone may be wrong or missing."""

PROGRAM_WORDS = frozenset(f"task.{key}" for key in PROGRAM_KEYS)


class _SearchPath(SearchPathPlugin):
    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        search_path.prepend("runner", f"{YamlSource.scheme()}://conf")


@contextlib.contextmanager
def open_composer(
    config_dirs: Sequence[str] = (), arguments: Sequence[str] = (), *, for_launches: bool = False
) -> Iterator[Composer]:
    """Open a composer that looks for YAML in these folders, the user's own and the shipped one.

    The program gets `arguments` after its own. For launches somebody has to say what to run.
    """
    files = ConfigFiles(conf_folders(config_dirs))
    YamlSource.files = files
    for plugin in (_SearchPath, YamlSource):  # first: plugins fill Hydra's store as they load
        Plugins.instance().register(plugin)
    store = ConfigStore.instance()
    defaults = written_defaults(Spec)
    store.store(name=SCHEMA, node=OmegaConf.create(defaults))
    for group in GROUPS:
        store.store(group=group, name="base", node=OmegaConf.create(defaults[group]))
    # For clusters of this machine: the first python3 on PATH may lack torch.
    OmegaConf.register_new_resolver("this_python", lambda: sys.executable, replace=True)
    shipped = str(shipped_folder())
    with hydra.initialize_config_dir(shipped, job_name=PRIMARY, version_base="1.3"):
        yield Composer(files, arguments, for_launches=for_launches)


class Composer:
    """Composes configurations; what is wrong with one is a ConfigError."""

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
        choices = CONTACT_CHOICES if contact_keys is not None else ()
        return self._request(self.composed(typed, choices), contact_keys)

    def sweep(self, typed: Sequence[str]) -> list[LaunchRequest]:
        """Compose every run of a `--multirun`; raise a ConfigError with each problem of one."""
        requests: list[LaunchRequest] = []
        for number, run in enumerate(words.runs_of_sweep(typed), 1):
            try:
                requests.append(self.compose(run))
            except ConfigError as error:
                where = f"in run {number}: {' '.join(run)}"
                found = [replace(p, hint=f"{p.hint}\n{where}".lstrip()) for p in error.problems]
                raise ConfigError(found) from error
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
        tree = self.composed(typed).tree
        take_words(tree["task"], typed, self._arguments)
        if not is_resolved:
            return tree
        tree["run_id"] = tree.get("run_id") or "RUN_ID"
        problems = Problems()
        values = plain_values(as_config(tree), "", problems)
        problems.raise_any()
        return dict(words.plain(values))

    def composed(self, typed: Sequence[str], choices: Sequence[str] = ()) -> Composed:
        """Compose a configuration without judging its values; `choices` are for groups untyped."""
        typed = [self._by_name(word) for word in typed]
        self._refuse_unknown(typed)
        named = [word.partition("=")[2] for word in typed if words.key_of(word) == rerun.KEY]
        record = None
        if named and named[-1] != "null":
            record = rerun.find_record(named[-1].strip("'\""), Path.cwd())
        keys = {words.key_of(word) for word in typed}
        if record is None and _sets_program(typed):
            # A program without `task=` stands alone: nothing of the default task is kept.
            choices = ("task=base", *choices)
        hydra_words = [word for word in choices if words.key_of(word) not in keys]
        # Our groups are there already: a `+` before one is none of Hydra's.
        hydra_words += [
            word.lstrip("+") if words.key_of(word) in GROUPS else word
            for word in typed
            if not words.is_value(word)
        ]
        self.files.loaded.clear()
        if record:
            ConfigStore.instance().store(RECORD, record.primary_config(keys))
        primary = RECORD if record else PRIMARY
        try:
            config = hydra.compose(primary, hydra_words, return_hydra_config=True)
        except ConfigError:
            raise
        except Exception as error:
            raise ConfigError([refusal(error, self.files, typed)]) from error
        chosen = dict(config.hydra.runtime.choices)
        with open_dict(config):
            del config["hydra"]
        tree = words.plain(OmegaConf.to_container(config, resolve=False))
        apply_words(tree, [word for word in typed if words.is_value(word)])
        cluster = chosen.get("cluster") or (record.plan.cluster if record else "")
        if not cluster:
            message = f"choose one file; there are {', '.join(self.files.options('cluster'))}"
            raise ConfigError([Problem("cluster", message, "such as cluster=local")])
        task = chosen.get("task")
        if task in (None, "base") and record and not _sets_program(typed):
            task = record.plan.task
        elif task in (None, "base"):
            task = program_name(plain_values(as_config(tree).task, "task", Problems()))
        return Composed(
            tree=tree,
            primary=primary,
            hydra_words=hydra_words,
            typed=typed,
            cluster=cluster,
            task=task,
            files=self.files,
            record=record,
        )

    def _refuse_unknown(self, typed: Sequence[str]) -> None:
        """Refuse words of no section and no group, and settings of Hydra."""
        problems = Problems()
        legal = [*keys_of(Spec)]
        for word in typed:
            section = re.split(r"[./]", words.key_of(word))[0]
            if section == "hydra":
                problems.report(word, NOT_OF_HYDRA, "run_dir is where records go")
            elif not section:
                problems.report(word, "names no key", "such as KEY=VALUE, or ~KEY to take it out")
            elif section not in legal and not self.files.has_group(section):
                problems.append(unknown_key("", section, legal))
        problems.raise_any()

    def _by_name(self, word: str) -> str:
        """Return a word that chooses a file by its path as one that does so by its name."""
        group, equals, option = word.partition("=")
        if group not in GROUPS or not equals:
            return word
        if option in ("", "null") or "," in option or option.startswith("["):
            message = f"{group} takes the name of one file"
            hint = f"there are {', '.join(self.files.options(group))}"
            raise ConfigError([Problem(word, message, hint)])
        path = Path(expand_home(option))
        if path.suffix not in SUFFIXES:
            return word
        if path.is_file():
            self.files.given[f"{group}/{path.stem}"] = path.absolute()
        elif "/" in option:
            near = suggest(option, map(str, path.parent.glob("*")), f"{group}=")
            raise ConfigError([Problem(word, "there is no such file", near)])
        return f"{group}={path.stem}"

    def _request(self, composed: Composed, contact_keys: Collection[str] | None) -> LaunchRequest:
        tree = composed.tree
        record = composed.record
        is_contact = contact_keys is not None
        if not is_contact:
            take_words(tree["task"], composed.typed, self._arguments)
        if record:
            tree[rerun.KEY] = record.plan.run_id
        if record and is_contact:
            tree["run_id"] = record.plan.run_id
        if tree.get("run_id") is None:
            while (run_id := new_run_id(composed.task)) in self._run_ids:  # of a sweep
                pass
            self._run_ids.add(run_id)
            tree["run_id"] = run_id
        context = Context(
            cluster=composed.cluster,
            task=composed.task,
            cwd=str(Path.cwd()),
            environ=os.environ,
            for_contact=is_contact,
        )
        problems = Problems()
        try:
            spec = resolve(self._values(composed, contact_keys, problems), context, problems)
        except ConfigError as error:
            located = [replace(p, subject=composed.place_of(p.subject)) for p in error.problems]
            raise ConfigError(located) from error
        typed = list(composed.typed)
        if self._arguments:
            typed += ["--", *self._arguments]
        notes: list[str] = []
        recorded_code = None
        if record and not is_contact:
            is_same = not _sets_program(composed.typed)
            recorded_code, notes = record.code_to_run(spec, typed, is_same_program=is_same)
        file_notes = [*self.files.shadows()]
        if dropped := drops_false(spec.task):
            message = f"task.args.{dropped}: false is left out, as is each that is false"
            file_notes.append(f"{message}; task.args_false=no makes --no-{dropped} of it")
        return LaunchRequest(
            spec=spec,
            run_dir=Path(Path.cwd(), expand_home(spec.run_dir)),
            config_yaml="" if is_contact else dump(tree),
            notes=tuple(notes),
            file_notes=tuple(file_notes),
            overrides=tuple(typed),
            contact_words=words.contact_words(composed.typed, spec.cluster.name),
            recorded_code=recorded_code,
            names_program=self._names_program(composed),
        )

    def _names_program(self, composed: Composed) -> bool:
        """Whether the user says what to run, here or in a file."""
        primary = self.files.loaded.get(PRIMARY)
        is_own = primary is not None and primary.path.parent != shipped_folder()
        is_chosen = primary is not None and "task" in chosen_groups(primary)
        return bool(composed.record) or _sets_program(composed.typed) or (is_own and is_chosen)

    def _values(
        self, composed: Composed, contact_keys: Collection[str] | None, problems: Problems
    ) -> dict[str, Any]:
        """Return the composed values, resolved; with `contact_keys`, those that are needed."""
        config = as_config(composed.tree)
        if contact_keys is not None:
            keys = {*words.CONTACT_KEYS, *contact_keys}
            # A key that is none is judged, too.
            keys |= {f"cluster.{key}" for key in composed.tree["cluster"].keys() - keys_of(Cluster)}
            wanted = plain_values(config, "", problems, lambda key: words.is_among(key, keys))
            problems.raise_any()
            return dict(wanted)
        values: dict[str, Any] = plain_values(config, "", problems)
        problems.raise_any()
        # The shipped default task is for a first try: here, without YAML.
        is_first_try = composed.cluster == "local" and len(self.files.folders) == 1
        if self._for_launches and not is_first_try and not self._names_program(composed):
            tasks = self.files.options("task")
            message = f"there is no task to launch; choose one of {', '.join(tasks)}"
            hint = f"such as task={tasks[0]}, or a program: task.script=train.py"
            problems.report("task", message, f"{hint}; conf/runner.yaml may choose for all")
        if composed.record is None and values.get(rerun.KEY) is not None:
            example = f"such as {this_program()} {rerun.KEY}={values[rerun.KEY]}"
            problems.report(rerun.KEY, "is for the command line only", example)
        return values


def apply_words(tree: dict[str, Any], typed: Sequence[str]) -> None:
    """Put the values of words into a composed configuration, those of single nodes last.

    Raises:
        ConfigError: There is no such node, or nothing to take out; with every such word.
    """
    problems = Problems()
    for word in sorted(typed, key=lambda word: word.lstrip("+").startswith(words.NODES_PREFIX)):
        key = words.key_of(word)
        option = words.option_of(key)
        is_removed = word.startswith("~")
        if is_removed and option and not section_of(option):
            words.put(tree, key.split("."), written_default(option))
        elif f"{key}.".startswith(words.ARGS_PREFIX):
            set_argument(problems, tree["task"], word)
        elif is_removed:
            *above, name = key.split(".")
            place: Any = tree
            for each in above:
                place = place.get(each) if isinstance(place, dict) else None
            if isinstance(place, dict) and name in place:
                del place[name]
            else:
                problems.append(absent(word, key))
        elif key.startswith(words.NODES_PREFIX):
            set_on_nodes(problems, tree, word)
        else:
            words.put(tree, key.split("."), words.value_of(word))
    problems.raise_any()


def _sets_program(typed: Sequence[str]) -> bool:
    for word in typed:
        key = words.key_of(word)
        if key == "task" or (key in PROGRAM_WORDS and not word.endswith(("=", "=null"))):
            return True
    return False
