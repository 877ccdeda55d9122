"""Launch requests: made of composed configurations, one by one or as the runs of a sweep."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from omegaconf import DictConfig, OmegaConf

from runner.config import primary, rerun
from runner.config.contact import contact_values, contact_words
from runner.config.error_messages import resolve_to_plain, unknown_keys
from runner.config.hydra_settings import output_folder_problems, setting_problems, with_defaults
from runner.config.overrides import parse_overrides
from runner.config.primary import HydraInput
from runner.config.search_path import ConfigFiles
from runner.config.spec_builder import build_spec
from runner.config.task import (
    append_arguments,
    new_run_id,
    program_name,
    refuse_overruled_arguments,
)
from runner.config.validation import SpecInputs
from runner.core.errors import ConfigError, Problem
from runner.core.model.spec import LaunchRequest, SweepPlace
from runner.core.shell import this_program

if TYPE_CHECKING:
    from hydra.conf import HydraConf
    from omegaconf import ListConfig

    from runner.core.model.spec import Spec


class RequestBuilder:
    """Validates composed configurations, and turns them into plain data."""

    def __init__(
        self,
        files: ConfigFiles,
        arguments: Sequence[str],
        compose: Callable[[HydraInput], DictConfig],
        *,
        for_launches: bool,
    ) -> None:
        self._files, self._arguments, self._compose = files, arguments, compose
        self._for_launches = for_launches
        self._run_ids: set[str] = set()

    def build(
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
        if contact_keys is None:
            config = with_defaults(config)
            refuse_overruled_arguments(config.task, overrides)
            append_arguments(config, self._arguments)
        if recorded_run:
            _set(config, rerun.KEY, recorded_run.plan.run_id)
            cluster = cluster if files or "cluster" in chosen else recorded_run.plan.cluster
            task = task if hydra_input.replaces_program else recorded_run.plan.task
        if recorded_run and contact_keys is not None:
            _set(config, "run_id", recorded_run.plan.run_id)
        if not OmegaConf.is_interpolation(config, "run_id") and config.get("run_id") is None:
            _set(config, "run_id", self._new_run_id(task))
        try:
            names = cluster, task
            spec, options = self._validate(config, names, hydra, hydra_input, contact_keys)
        except ConfigError as error:
            locate = functools.partial(self._files.locate_key, configs=configs, overrides=overrides)
            located = [replace(p, subject=locate(p.subject)) for p in error.problems]
            raise ConfigError(located) from error
        typed = (*overrides, *(("--", *self._arguments) if self._arguments else ()))
        notes = tuple(primary.merged_nodes_notes(hydra_input.parsed, config))
        recorded_code = None
        if recorded_run and contact_keys is None:
            is_same = not hydra_input.replaces_program
            recorded_code, own = recorded_run.code_to_run(spec, typed, is_same_program=is_same)
            notes = (*own, *notes)
        return LaunchRequest(
            spec=spec,
            config_yaml="" if contact_keys is not None else OmegaConf.to_yaml(config),
            notes=notes,
            file_notes=tuple(self._files.shadows(configs)),
            overrides=typed,
            contact_words=contact_words(overrides, spec.cluster),
            recorded_code=recorded_code,
            record_hosts=recorded_run.hosts if recorded_run else (),
            names_program=hydra_input.names_program,
            **options,
        )

    def _new_run_id(self, task: str) -> str:
        """Return an id that no other run of a sweep has."""
        while (run_id := new_run_id(task)) in self._run_ids:
            pass
        self._run_ids.add(run_id)
        return run_id

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
        words = as_typed(hydra.overrides.hydra) + as_typed(hydra.overrides.task)
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
        without_changes = replace(hydra_input, overrides=remaining)
        nodes = self._compose(without_changes).cluster.nodes
        keys = [o.key_or_group.removeprefix(prefix) for o in below]
        known_entries = list(nodes) if isinstance(nodes, DictConfig) else []
        return [tuple(key.split(".")) for key in keys], known_entries


def _set(config: DictConfig, key: str, value: str) -> None:
    OmegaConf.update(config, key, value, force_add=True)  # ~KEY may have removed it


def as_typed(words: list[str]) -> list[str]:
    """Return the words of a list of OmegaConf, unresolved: `${.b}` is no neighbour in there."""
    return cast("list[str]", OmegaConf.to_container(cast("ListConfig", words), resolve=False))


@dataclass(frozen=True)
class FailedRun:
    """A run that cannot be composed."""

    name: str  # its number and its overrides
    problems: tuple[Problem, ...]


def as_sweep(results: Sequence[LaunchRequest | FailedRun], sweep_id: str) -> list[LaunchRequest]:
    """Return the runs with their places in the sweep, or raise a ConfigError with every problem."""
    requests = [result for result in results if isinstance(result, LaunchRequest)]
    if len(requests) < len(results):
        raise ConfigError(_merge_problems(results))
    if len({request.run_dir for request in requests}) < len(requests):
        message = "every run of a --multirun needs its own folder"
        raise ConfigError([Problem("run_dir", message, "leave out run_id and run_dir")])
    if len(requests) == 1:
        return requests
    common = set.intersection(*(set(request.overrides) for request in requests))
    changes = [tuple(w for w in request.overrides if w not in common) for request in requests]
    return [
        replace(request, sweep=SweepPlace(sweep_id, number, len(requests), changed))
        for number, (request, changed) in enumerate(zip(requests, changes, strict=True), 1)
    ]


def _merge_problems(results: Sequence[LaunchRequest | FailedRun]) -> list[Problem]:
    """Return each problem once; those that not every run has name the first run that has them."""
    runs_of: dict[Problem, list[str]] = {}
    for run in (result for result in results if isinstance(result, FailedRun)):
        for problem in run.problems:
            runs_of.setdefault(problem, []).append(run.name)
    return [
        problem
        if len(names) == len(results)
        else replace(problem, hint=f"{problem.hint}\nin {names[0]}".lstrip())
        for problem, names in runs_of.items()
    ]
