"""Composer: YAML and a command line become plain data, by way of Hydra."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import os
import re
import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from hydra._internal.core_plugins.bash_completion import BashCompletion
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.errors import ConfigCompositionException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict

from runner.config import primary, rerun
from runner.config.contact import CONTACT_CHOICES, contact_values, contact_words
from runner.config.error_messages import (
    explain_error,
    resolve_to_plain,
    unknown_keys,
    with_all_refused,
)
from runner.config.hydra_settings import (
    output_folder_problems,
    override_problems,
    setting_problems,
)
from runner.config.overrides import (
    hydra_value,
    override_key,
    parse_overrides,
    to_hydra,
)
from runner.config.primary import HydraInput
from runner.config.schema import GROUPS, with_defaults
from runner.config.search_path import ConfigFiles, conf_folders, hydra_session
from runner.config.spec_builder import build_spec
from runner.config.sweep import FailedRun, as_sweep
from runner.config.task import append_arguments, new_run_id, program_name
from runner.config.validation import SpecInputs, suggest
from runner.core.errors import ConfigError, Problem, is_output_error
from runner.core.model.spec import LaunchRequest
from runner.core.shell import this_program

if TYPE_CHECKING:
    from hydra._internal.hydra import Hydra
    from hydra.conf import HydraConf
    from omegaconf import ListConfig

    from runner.core.model.results import Origin
    from runner.core.model.spec import Spec


@contextlib.contextmanager
def open_composer(
    config_dirs: Sequence[str] = (), arguments: Sequence[str] = (), *, for_launches: bool = False
) -> Iterator[Composer]:
    """Open a composer that looks for YAML in these folders, the user's own and the shipped one.

    The program gets `arguments` after its own. For launches somebody has to say what to run.
    """
    folders = conf_folders(config_dirs)
    with hydra_session(folders, primary.SHIPPED) as hydra:
        yield Composer(hydra, ConfigFiles(folders), arguments, for_launches=for_launches)


class Composer:
    """Hydra with our search path and our error messages."""

    def __init__(
        self, hydra: Hydra, files: ConfigFiles, arguments: Sequence[str], *, for_launches: bool
    ) -> None:
        self._arguments = arguments
        self._for_launches = for_launches
        self._hydra = hydra
        self._files = files
        self._run_ids: set[str] = set()

    def compose(
        self, overrides: Sequence[str], contact_keys: Collection[str] | None = None
    ) -> LaunchRequest:
        """Compose one run, or raise a ConfigError with every problem.

        With `contact_keys`, only what reaches the hosts and these keys are resolved and judged.
        """
        try:
            with self._translate_errors(overrides):
                hydra_input = self._prepare(overrides)
                config = self._compose_some(hydra_input, contact_keys)
        except ConfigError as error:
            further = self._further_problems(error, overrides, contact_keys)
            raise ConfigError([*error.problems, *further]) from error
        with self._translate_errors(overrides):
            HydraConfig.instance().set_config(config)
            hydra = config.hydra
            config = _drop_hydra_section(config)
            return self._build_request(config, hydra, overrides, hydra_input, contact_keys)

    def _further_problems(
        self, first: ConfigError, overrides: Sequence[str], contact_keys: Collection[str] | None
    ) -> list[Problem]:
        """Return the problems after the first: Hydra stops at the first value that it refuses.

        None are looked for where the cluster or the task is misspelt: most would be consequences.
        """
        keys = {problem.subject for problem in first.problems}
        if keys & {rerun.KEY} or any(suggest(key, GROUPS) for key in keys if "." not in key):
            return []
        named = tuple(f"{key}." for key in keys)
        remaining = [w for w in overrides if not f"{override_key(w)}.".startswith(named)]
        if len(remaining) < len(overrides):
            try:
                self.compose(remaining, contact_keys)
            except ConfigError as error:
                return list(error.problems)
        return []

    def sweep(self, overrides: Sequence[str]) -> list[LaunchRequest]:
        """Compose every run of a `--multirun`, or raise a ConfigError with every problem of all."""

        def compose(config: DictConfig) -> LaunchRequest | FailedRun:
            hydra = HydraConfig.get()
            words = _as_typed(hydra.overrides.task)
            try:
                return self._build_request(config, hydra, words, hydra_input)
            except ConfigError as error:
                return FailedRun(f"run {hydra.job.num + 1}: {' '.join(words)}", error.problems)

        with self._translate_errors(overrides), tempfile.TemporaryDirectory() as folder:
            hydra_input = self._prepare(overrides)
            # Hydra's sweepers write there; each of our runs has its own record.
            hydra_overrides = [*hydra_input.overrides, f"hydra.sweep.dir={hydra_value(folder)}"]
            args = (hydra_input.primary, compose, hydra_overrides)
            batches = self._hydra.multirun(*args, with_log_configuration=False)
            results = [job.return_value for batch in batches for job in batch]
        return as_sweep(results, new_run_id("sweep"))

    def origins(self, overrides: Sequence[str], key: str = "") -> list[Origin]:
        """Return the origin of a value, or of every value below a key; illegal values included."""
        from runner.config import provenance  # noqa: PLC0415

        with self._translate_errors(overrides):
            hydra_input = self._prepare(overrides)
            config = self._compose_config(hydra_input)
            defaults = self._hydra.config_loader.compute_defaults_list(
                hydra_input.primary, hydra_input.overrides, RunMode.RUN
            )
            places = config.hydra.runtime.config_sources
            roots = [Path(place.path) for place in places if place.schema == "file"]
            typed = hydra_input.overrides[-len(overrides) :] if overrides else ()
            as_typed = dict(zip(typed, overrides, strict=True))
            words = [str(override.input_line) for override in defaults.config_overrides]
            words = [as_typed.get(word, word) for word in words]
            settings = list(zip(words, defaults.config_overrides, strict=True))
            records = self._files.explicit_paths
            sources = provenance.collect_layers(defaults.defaults, roots, settings, records)
            return provenance.ProvenanceTracer(_drop_hydra_section(config), sources).origins(key)

    def yaml(self, overrides: Sequence[str], key: str = "", *, resolve: bool = False) -> str:
        """Return the configuration, or what stands below a key, as YAML."""
        from runner.config.provenance import as_yaml  # noqa: PLC0415

        with self._translate_errors(overrides):
            config = self._compose_config(self._prepare(overrides))
            return as_yaml(_drop_hydra_section(config), key, resolve=resolve)

    def show(
        self,
        overrides: Sequence[str] | None,
        action: Callable[[Hydra, str, argparse.Namespace], None],
    ) -> None:
        """Have a method of Hydra print a configuration, or with None something about Hydra."""
        with self._translate_errors(overrides or ()):
            hydra_input = self._prepare(overrides or ())
            if overrides is not None:
                # Raises our own message where something is wrong.
                config = self._compose_config(hydra_input)
                hydra_input.overrides.extend(append_arguments(config, self._arguments))
            args = argparse.Namespace(overrides=hydra_input.overrides, resolve=False)
            try:
                action(self._hydra, hydra_input.primary, args)
            except SystemExit as error:
                raise ConfigError([]) from error  # Hydra has said why.

    def complete(self, overrides: Sequence[str], word: str) -> list[str]:
        """Return what a word after these overrides may become; `=` or `.` ends what goes on."""
        hydra_input = self._prepare(overrides)
        completion = BashCompletion(self._hydra.config_loader)
        found = completion._query(hydra_input.primary, " ".join([*hydra_input.overrides, word]))  # noqa: SLF001
        ours = [each for each in found if not re.match(r"[+~]?hydra\b|.*=base$", each)]
        is_bool = len(ours) == 1 and ours[0] in (f"{word}true", f"{word}false")
        return [f"{word}true", f"{word}false"] if is_bool else ours

    @contextlib.contextmanager
    def _translate_errors(self, overrides: Sequence[str]) -> Iterator[None]:
        """Turn any error of Hydra into a ConfigError with one problem."""
        try:
            yield
        except ConfigError:
            raise
        except Exception as error:
            if os.environ.get("HYDRA_FULL_ERROR") == "1" or is_output_error(error):
                raise
            raise ConfigError([explain_error(error, self._files, overrides)]) from error

    def _prepare(self, overrides: Sequence[str]) -> HydraInput:
        """Parse overrides, and load the record that `rerun` names.

        A program without `task=` stands alone: nothing of the default task is kept.
        """
        parsed = parse_overrides(overrides)
        hydra_overrides = list(map(to_hydra, overrides))
        problems = list(override_problems(parsed))
        problems += primary.group_problems(self._files, overrides, parsed)
        for word in overrides if self._arguments else ():
            if override_key(word) == "task.extra_args" and not word.startswith("~"):
                hint = "give them in one place; ~task.extra_args takes out those of the YAML"
                problems.append(Problem(word, "words after `--` are arguments, too", hint))
        if problems:
            raise ConfigError(problems)
        primary_name, chosen = self._load_primary()
        hydra_input = HydraInput(primary_name, hydra_overrides, parsed, chosen=chosen)
        is_rerun = rerun.KEY in hydra_input.keys
        if is_rerun and (name := rerun.requested_run(parsed)) is not None:
            run = rerun.find_record(name, Path.cwd())
            self._files.explicit_paths[rerun.CONFIG_NAME] = run.config_file
            node = run.primary_config(hydra_input.keys, self._files.shipped_primary)
            ConfigStore.instance().store(rerun.CONFIG_NAME, node)
            given = dataclasses.replace(hydra_input, record=run, chosen={})
            return dataclasses.replace(given, primary=rerun.CONFIG_NAME)
        programs = [o for o in parsed if o.key_or_group in rerun.TASK_PROGRAM_KEYS]
        if "task" not in hydra_input.keys and any(o.value() is not None for o in programs):
            return dataclasses.replace(hydra_input, overrides=["task=base", *hydra_overrides])
        return hydra_input

    def _load_primary(self) -> tuple[str, dict[str, Any]]:
        """Return the name of the primary config, and what the user's own one chooses by group."""
        own = self._files.find(primary.SHIPPED)[0]
        if own == self._files.shipped_primary:
            return primary.SHIPPED, {}
        self._files.explicit_paths[primary.MERGED] = own
        merged, chosen = primary.merge(own, self._files.shipped_primary)
        ConfigStore.instance().store(primary.MERGED, merged)
        return primary.MERGED, chosen

    def _compose_config(self, hydra_input: HydraInput) -> DictConfig:
        given = (hydra_input.primary, hydra_input.overrides, RunMode.RUN)
        try:
            return self._hydra.compose_config(*given)
        except ConfigCompositionException as error:
            loader = self._hydra.config_loader
            defaults = lambda: loader.compute_defaults_list(*given).defaults  # noqa: E731
            raise with_all_refused(error, self._files, defaults) from error.__cause__

    def _compose_some(
        self, hydra_input: HydraInput, contact_keys: Collection[str] | None
    ) -> DictConfig:
        """Compose; with `contact_keys`, files of a launch alone may be wrong or missing."""
        try:
            return self._compose_config(hydra_input)
        except Exception:
            if contact_keys is None or hydra_input.record:
                raise
        free = [word for word in CONTACT_CHOICES if word.partition("=")[0] not in hydra_input.keys]
        overrides = [*free, *hydra_input.overrides]
        return self._compose_config(dataclasses.replace(hydra_input, overrides=overrides))

    def _build_request(
        self,
        config: DictConfig,
        hydra: HydraConf,
        overrides: Sequence[str],
        hydra_input: HydraInput,
        contact_keys: Collection[str] | None = None,
    ) -> LaunchRequest:
        """Validate a composed configuration, and turn it into plain data."""
        recorded_run = hydra_input.record
        chosen = {
            group: f"{group}/{option}"
            for group, option in hydra.runtime.choices.items()
            if isinstance(option, str) and not group.startswith("hydra/")
        }
        files = [] if "cluster" in chosen else hydra_input.several_files("cluster")
        several = [f"cluster/{name}" for name in files]
        configs = [hydra_input.primary, *sorted([*chosen.values(), *several])]
        task = chosen.get("task", "").removeprefix("task/")
        if task in ("", "base"):
            task = program_name(resolve_to_plain(config.task, "task", []))
        cluster = "+".join(files) or chosen.get("cluster", "cluster").removeprefix("cluster/")
        config = with_defaults(config)
        append_arguments(config, self._arguments)
        if recorded_run:
            config.rerun = recorded_run.plan.run_id
            cluster = cluster if files or "cluster" in chosen else recorded_run.plan.cluster
            task = task if hydra_input.replaces_program else recorded_run.plan.task
        if recorded_run and contact_keys is not None:
            config.run_id = recorded_run.plan.run_id
        if not OmegaConf.is_interpolation(config, "run_id") and config.run_id is None:
            while (run_id := new_run_id(task)) in self._run_ids:
                pass  # every run of a sweep has its own
            self._run_ids.add(run_id)
            config.run_id = run_id
        try:
            names = cluster, task
            spec, options = self._validate(config, names, hydra, hydra_input, contact_keys)
        except ConfigError as error:
            locate = functools.partial(self._files.locate_key, configs=configs, overrides=overrides)
            located = [dataclasses.replace(p, subject=locate(p.subject)) for p in error.problems]
            raise ConfigError(located) from error
        typed = (*overrides, *(("--", *self._arguments) if self._arguments else ()))
        merged_notes = primary.merged_nodes_notes(hydra_input.parsed, config)
        recorded_code, notes = None, (*merged_notes, *self._files.shadows(configs))
        if recorded_run and contact_keys is None:
            is_same = not hydra_input.replaces_program
            recorded_code, own = recorded_run.code_to_run(spec, typed, is_same_program=is_same)
            notes = (*own, *notes)
        return LaunchRequest(
            spec=spec,
            config_yaml=OmegaConf.to_yaml(config, resolve=False),
            notes=notes,
            overrides=typed,
            contact_words=contact_words(overrides, spec.cluster),
            recorded_code=recorded_code,
            record_hosts=recorded_run.hosts if recorded_run else (),
            names_program=hydra_input.names_program,
            **options,
        )

    def _validate(
        self,
        config: DictConfig,
        names: tuple[str, str],
        hydra: HydraConf,
        given: HydraInput,
        contact_keys: Collection[str] | None,
    ) -> tuple[Spec, dict[str, Any]]:
        """Return the `Spec` and the options of the run; `names` are those of cluster and task."""
        if contact_keys is None:
            raw = OmegaConf.to_container(config, resolve=False)
            unresolved = [*setting_problems(hydra), *output_folder_problems(raw)]
            values = {} if unresolved else resolve_to_plain(config, "", unresolved)
        else:
            unresolved = []
            values = contact_values(config, contact_keys, unresolved)
        if unresolved:
            raise ConfigError(unresolved)
        words = _as_typed(hydra.overrides.hydra) + _as_typed(hydra.overrides.task)
        nodes = self._node_overrides(words, given)
        inputs = SpecInputs(values, *names, str(Path.cwd()), os.environ, *nodes)
        problems = list(unknown_keys(values))
        if self._for_launches and not given.names_program:
            problems += primary.default_task_problems(self._files, inputs.cluster)
        if given.record is None and values.get(rerun.KEY) is not None:
            example = f"such as {this_program()} {rerun.KEY}={values[rerun.KEY]}"
            problems.append(Problem(rerun.KEY, "is for the command line only", example))
        return build_spec(inputs, problems)

    def _node_overrides(
        self, overrides: Sequence[str], hydra_input: HydraInput
    ) -> tuple[list[tuple[str, ...]], list[str] | None]:
        """Return the paths below `cluster.nodes` that are overridden, and the legal entries.

        `cluster.nodes` is open, so that `cluster.nodes.gpu05.gpus=4` needs no `+` where the YAML
        has `gpu[01-16]`. Hydra therefore takes misspelt names too, and nodes.py refuses them.
        """
        parsed = parse_overrides(overrides)
        prefix = primary.NODES_PREFIX
        below = [o for o in parsed if o.key_or_group.startswith(prefix) and not o.is_delete()]
        if not below:
            return [], None
        changes = {o.input_line for o in below if not o.is_add() and not o.is_force_add()}
        remaining = [word for word in overrides if word not in changes]
        without_changes = dataclasses.replace(hydra_input, overrides=remaining)
        nodes = self._compose_config(without_changes).cluster.nodes
        keys = [o.key_or_group.removeprefix(prefix) for o in below]
        known_entries = list(nodes) if isinstance(nodes, DictConfig) else []
        return [tuple(key.split(".")) for key in keys], known_entries


def _as_typed(words: list[str]) -> list[str]:
    """Return the words of a list of OmegaConf, unresolved: `${.b}` is no neighbour in there."""
    return cast("list[str]", OmegaConf.to_container(cast("ListConfig", words), resolve=False))


def _drop_hydra_section(config: DictConfig) -> DictConfig:
    with open_dict(config):
        del config["hydra"]
    return config
