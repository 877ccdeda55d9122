"""Composer: YAML and a command line become launch requests, by way of Hydra."""

from __future__ import annotations

import contextlib
import copy
import os
import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import hydra
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.plugins import Plugins
from hydra.plugins.search_path_plugin import SearchPathPlugin
from hydra.types import RunMode
from hydra.version import VersionBase
from omegaconf import DictConfig, ListConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from runner.config import rerun, words
from runner.config.arguments import drops_false, take_words
from runner.config.errors import explain_error, unresolved_problem
from runner.config.kinds import Problems, suggest
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
    SCHEMA,
    SUFFIXES,
    ConfigFiles,
    KeyPath,
    YamlSource,
    chosen_groups,
    conf_folders,
    display_path,
    dump,
    read,
    shipped_folder,
)
from runner.core.errors import ConfigError, Problem
from runner.core.launch_request import LaunchRequest, SweepPlace
from runner.core.shell import expand_home, this_program
from runner.core.spec import GROUPS, Spec, keys_of, written_defaults

CONTACT_KEYS = (
    "cluster.scheduler",
    "cluster.login_node",
    "cluster.transport",
    "cluster.nodes",
    "cluster.only",
    "cluster.exclude",
    "cluster.ssh",
    "cluster.host_python",
    "cluster.workdir",
    "run_id",
    "run_dir",
    "ui",
    "console_ranks",
    "grace_s",
    "lost_s",
    "disconnect_s",
    "pull_outputs",
    "progress.pattern",
)
"""What reaches the hosts of a run, and says how it is stopped and shown."""

IF_RESOLVED = ("cluster.setup", "cluster.project")
"""They may bring the interpreter; without their variables, it may be there all the same."""

CONTACT_CHOICES = ("task=base", "rendezvous=static", "container=none")
"""Choices of files that always compose, for groups that reach no host."""

NODE_ENV = re.compile(r"cluster\.nodes\..+\.env(\..*)?")
PROGRAM_WORDS = frozenset(f"task.{key}" for key in PROGRAM_KEYS)
RECORD = "_rerun_"
"""The name of a record for Hydra; no file of a user has it."""


class _Folders(SearchPathPlugin):
    """The folders of YAML, for Hydra."""

    folders: ClassVar[Sequence[Path]] = ()

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        for folder in reversed(self.folders):
            search_path.prepend("runner", f"runner://{folder}")


@contextlib.contextmanager
def open_composer(
    config_dirs: Sequence[str] = (), arguments: Sequence[str] = (), *, for_launches: bool = False
) -> Iterator[Composer]:
    """Open a composer that looks for YAML in these folders, the user's own and the shipped one.

    The program gets `arguments` after its own. For launches somebody has to say what to run.
    Hydra's global state is left as it was: the program around us may run under `@hydra.main`.
    """
    folders = conf_folders(config_dirs)
    Plugins.instance().register(_Folders)  # first: plugins fill Hydra's store as they load
    Plugins.instance().register(YamlSource)
    instance = GlobalHydra.instance()
    config = HydraConfig.instance()
    store = ConfigStore.instance()
    base = VersionBase.instance()
    saved = (instance.hydra, config.cfg, store.repo, base.getbase())
    instance.clear()
    store.repo = {name: copy.copy(node) for name, node in store.repo.items()}  # groups are dicts
    _Folders.folders = folders
    YamlSource.given = {}
    try:
        _register_schema(store)
        shipped = str(shipped_folder())
        with hydra.initialize_config_dir(shipped, job_name=PRIMARY, version_base="1.3"):
            yield Composer(ConfigFiles(folders), arguments, for_launches=for_launches)
    finally:
        # `initialize_config_dir` leaves a copy of GlobalHydra in its place.
        GlobalHydra.set_instance(instance)
        instance.hydra, config.cfg, store.repo, version = saved
        base.version_base = version
        _Folders.folders = ()


def _register_schema(store: ConfigStore) -> None:
    """Register the defaults with Hydra, as `runner_base`, `cluster/base` and so on."""
    defaults = written_defaults(Spec)
    store.store(name=SCHEMA, node=OmegaConf.create(defaults))
    for group in GROUPS:
        store.store(group=group, name="base", node=OmegaConf.create(defaults[group]))
    # For clusters of this machine: the first python3 on PATH may lack torch.
    OmegaConf.register_new_resolver("this_python", lambda: sys.executable, replace=True)


@dataclass(frozen=True)
class Layer:
    """One source of values; later layers win over earlier ones."""

    config: str  # its name for Hydra, "" for a word
    place: str  # a file, or a word
    content: Any  # from the top of the configuration
    lines: Mapping[KeyPath, int] = field(default_factory=dict)

    def line(self, keys: KeyPath) -> int:
        """Return the line of a key, or of the nearest key above it."""
        lines = (self.lines.get(keys[:depth], 0) for depth in range(len(keys), 0, -1))
        return next(filter(None, lines), 0)


@dataclass(frozen=True)
class Composed:
    """A configuration, and what it was composed of."""

    config: DictConfig
    primary: str
    hydra_words: list[str]
    typed: Sequence[str]
    choices: dict[str, Any]
    node_keys: Sequence[tuple[str, str]] = ()
    record: rerun.RecordedRun | None = None


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
            composed = self._compose(typed)
        except ConfigError:
            if contact_keys is None:
                raise
            # A file of a launch alone may be wrong or missing.
            keys = {words.key_of(word) for word in typed}
            free = [word for word in CONTACT_CHOICES if words.key_of(word) not in keys]
            composed = self._compose([*free, *typed])
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
        if problems and requests:
            found = [replace(p, hint=f"{p.hint}\n{run}".lstrip()) for p, run in problems.items()]
            raise ConfigError(found)
        if problems:
            raise ConfigError(list(problems))
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
        composed = self._compose(typed)
        take_words(composed.config, typed, self._arguments)
        if not is_resolved:
            return _container(composed.config)
        if composed.config.get("run_id") is None:
            composed.config.run_id = "RUN_ID"
        problems = Problems()
        values = plain_values(composed.config, "", problems)
        problems.raise_any()
        return dict(values)

    def layers(self, composed: Composed) -> list[Layer]:
        """Return every source of values of a configuration; the last one wins."""
        loader = GlobalHydra.instance().config_loader()
        given = (composed.primary, composed.hydra_words, RunMode.RUN)
        layers = []
        for default in loader.compute_defaults_list(*given).defaults:
            config = str(default.config_path).removesuffix(".yaml")
            package = tuple(filter(None, (default.package or "").split(".")))
            yaml_file = YamlSource.loaded.get(config)
            if yaml_file and package[:1] != ("hydra",):
                lines = {(*package, *keys): line for keys, line in yaml_file.lines.items()}
                content = {k: v for k, v in yaml_file.content.items() if k != "defaults"}
                for name in reversed(package):
                    content = {name: content}
                layers.append(Layer(config, display_path(yaml_file.path), content, lines))
        if composed.record:
            file = composed.record.config_file
            lines = {} if composed.record.hosts else read(file).lines
            content = _container(composed.record.config)
            layers.insert(0, Layer(RECORD, display_path(file), content, lines))
        for word in composed.typed:
            key = words.key_of(word)
            if key not in GROUPS:
                value: Any = word.partition("=")[2]
                for name in reversed(key.split(".")):
                    value = {name: value}
                layers.append(Layer("", f"command line: {word}", value))
        return layers

    def composed(self, typed: Sequence[str]) -> Composed:
        """Compose a configuration without judging its values."""
        return self._compose(typed)

    def options(self, group: str) -> list[str]:
        """Return the files of a group, or the groups themselves for ""."""
        loader = GlobalHydra.instance().config_loader()
        return list(loader.get_group_options(group))

    def _compose(self, typed: Sequence[str]) -> Composed:
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
        with self._translated_errors(typed):
            config = hydra.compose(primary, hydra_words, return_hydra_config=True)
        choices = dict(config.hydra.runtime.choices)
        with open_dict(config):
            del config["hydra"]
        OmegaConf.set_struct(config, value=False)
        node_keys = apply_words(config, node_words)
        return Composed(config, primary, hydra_words, typed, choices, node_keys, record)

    def _refuse_unknown(self, typed: Sequence[str]) -> None:
        """Refuse words of no section and no group, and settings of Hydra."""
        problems = Problems()
        legal = [*keys_of(Spec)]
        for word in typed:
            section = re.split(r"[./]", words.key_of(word))[0]
            is_group = any((folder / section).is_dir() for folder in self.files.folders)
            if section == "hydra":
                hint = (
                    "run_dir=PATH/${run_id} sets where records go, task.env.NAME=VALUE a variable, "
                    "-m makes a sweep"
                )
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

    @contextlib.contextmanager
    def _translated_errors(self, typed: Sequence[str]) -> Iterator[None]:
        """Turn any error of Hydra into a ConfigError with one problem."""
        try:
            yield
        except ConfigError:
            raise
        except Exception as error:
            if os.environ.get("HYDRA_FULL_ERROR") == "1":
                sys.excepthook(type(error), error, error.__traceback__)
            raise ConfigError([explain_error(error, self.files, typed)]) from error

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
                node_words=composed.node_keys,
                for_contact=contact_keys is not None,
            )
            spec = resolve(values, context, problems)
        except ConfigError as error:
            layers = self.layers(composed)
            located = [replace(p, subject=_located(p.subject, layers)) for p in error.problems]
            raise ConfigError(located) from error
        typed = list(composed.typed)
        if self._arguments:
            typed += ["--", *self._arguments]
        notes = self._notes(composed, spec)
        recorded_code = None
        if record and contact_keys is None:
            is_same = not _sets_program(composed.typed)
            recorded_code, own = record.code_to_run(spec, typed, is_same_program=is_same)
            notes = [*own, *notes]
        return LaunchRequest(
            spec=spec,
            run_dir=Path(Path.cwd(), expand_home(spec.run_dir)),
            config_yaml="" if contact_keys is not None else dump(_container(config)),
            notes=tuple(notes),
            file_notes=tuple(self._file_notes(composed, spec)),
            overrides=tuple(typed),
            contact_words=_contact_words(composed.typed, spec.cluster.name),
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
            optional = plain_values(config, "", Problems(), lambda key: _is_among(key, IF_RESOLVED))
            keys = (*CONTACT_KEYS, *contact_keys)
            wanted = plain_values(config, "", problems, lambda key: _is_among(key, keys))
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
        own_cluster = next(iter(self.files.options("cluster", own_only=True)), cluster)
        chosen = cluster if cluster != "local" else own_cluster
        command = f"{this_program()} cluster={chosen} task={tasks[0]}"
        hint = f"{command}\nor a program: task.script=train.py; conf/runner.yaml may choose for all"
        message = f"there is no task to launch; choose one of {', '.join(tasks)}"
        yield Problem("task", message, hint)

    def _notes(self, composed: Composed, spec: Spec) -> list[str]:
        """Return notes about what was typed."""
        notes = []
        for word in composed.typed:
            if words.key_of(word) == "cluster.nodes" and "=" in word:
                names = [str(name) for name in composed.config.cluster.nodes]
                value = words.parse([word])[0].value()
                if isinstance(value, dict) and len(names) > len(value) > 0:
                    only = ",".join(map(str, value))
                    message = f"cluster.nodes={{…}} adds to those of the YAML: {', '.join(names)}"
                    notes.append(f"{message}; cluster.only=[{only}] uses these alone")
        return notes

    def _file_notes(self, composed: Composed, spec: Spec) -> Iterator[str]:
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


def _container(config: Any) -> dict[str, Any]:
    """Return a configuration as plain data, unresolved."""
    return dict(words.plain(OmegaConf.to_container(config, resolve=False)))


def _sets_program(typed: Sequence[str]) -> bool:
    """Return whether words say what to run."""
    for word in typed:
        key = words.key_of(word)
        if key == "task" or (key in PROGRAM_WORDS and not word.endswith(("=", "=null"))):
            return True
    return False


def plain_values(
    node: Any,
    where: str,
    problems: Problems,
    is_wanted: Callable[[str], bool] = lambda _: True,
) -> Any:
    """Return a config as plain data, resolved; add what cannot be resolved to `problems`.

    Keys that are not wanted, by their full names, are neither resolved nor returned.
    """
    if isinstance(node, DictConfig):
        pairs = [(key, str(key)) for key in node]
    elif isinstance(node, ListConfig):
        pairs = [(index, str(index)) for index in range(len(node))]
    else:
        return node
    result: dict[str, Any] = {}
    for key, name in pairs:
        full_key = f"{where}.{name}" if where else name
        if not is_wanted(full_key):
            continue
        try:
            value = node[key]
        except OmegaConfBaseException as error:
            problem = unresolved_problem(full_key, error)
            if problem.message not in {earlier.message for earlier in problems}:
                problems.append(problem)
        else:
            result[name] = plain_values(value, full_key, problems, is_wanted)
    return result if isinstance(node, DictConfig) else list(result.values())


def _is_among(key: str, keys: Collection[str]) -> bool:
    """Return whether a key is one of these, leads to one or stands below one."""
    leads_to_one = any(f"{wanted}.".startswith(f"{key}.") for wanted in keys)
    is_below_one = any(f"{key}.".startswith(f"{wanted}.") for wanted in keys)
    return (leads_to_one or is_below_one) and not NODE_ENV.fullmatch(key)


def _located(key: str, layers: Sequence[Layer]) -> str:
    """Return `FILE:LINE: KEY` for the file that sets a key, or the key alone."""
    keys = tuple(key.split("."))
    for layer in reversed(layers):
        if layer.config and keys in layer.lines:
            is_choice = layer.config.startswith("rendezvous/")  # users choose one, and edit none
            return key if is_choice else f"{layer.place}:{layer.lines[keys]}: {key}"
        if not layer.config and f"{key}.".startswith(f"{_key_of(layer)}."):
            return key
    return key


def _key_of(layer: Layer) -> str:
    return words.key_of(layer.place.removeprefix("command line: "))


def ignored_words(typed: Sequence[str], keys: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the words that set neither what reaches hosts nor these keys; and what may be set."""
    taken = sorted({"cluster", *CONTACT_KEYS, *IF_RESOLVED, "cluster.python", rerun.KEY, *keys})
    below = [key for key in taken if key != "cluster"]
    sections = keys_of(Spec)
    ignored = []
    for word in typed:
        key = words.key_of(word)
        is_known = re.split(r"[./]", key)[0] in sections
        if is_known and key != "cluster" and not _is_among(key, below):
            ignored.append(word)
    return ignored, taken


def _contact_words(typed: Sequence[str], cluster: str) -> tuple[str, ...]:
    """Return those of a launch's words by which a verb reaches the same hosts.

    Task and environment of the launch are not among them.
    """
    own = {*written_defaults(Spec), "hydra"}
    keys = {*CONTACT_KEYS, *IF_RESOLVED, "cluster.python", rerun.KEY} - {"run_id"}
    kept = []
    for word in typed:
        key = words.key_of(word)
        is_known = re.split(r"[./]", key)[0] in own
        if key != "cluster" and (_is_among(key, keys) or not is_known):
            kept.append(word)
    chosen = words.chosen_cluster(typed)
    several = f"[{cluster.replace('+', ',')}]" if "+" in cluster else cluster
    repeats_record = any(words.key_of(word) == rerun.KEY for word in kept)
    flags = () if repeats_record and not chosen else ("--cluster", chosen or several)
    return (*flags, *kept)
