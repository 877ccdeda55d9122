"""Primary config: the shipped `runner.yaml` with the user's own merged over it; choices of files.

A choice names a file of a group, in a list of defaults or on the command line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf

from runner.config import rerun
from runner.config.schema import GROUPS
from runner.config.search_path import ConfigFiles, display_path
from runner.core.errors import ConfigError, Problem
from runner.core.shell import this_program

SHIPPED = "runner"
MERGED = "_runner_"
"""The name of the merged config for Hydra; no file of a user has it."""
SCHEMA, SELF = "runner_base", "_self_"
NODES_PREFIX = "cluster.nodes."


@dataclass(frozen=True)
class HydraInput:
    """The arguments of Hydra for the overrides of a user."""

    primary: str  # the name of the primary config
    overrides: list[str]  # in Hydra's grammar
    parsed: list[Override]
    record: rerun.RecordedRun | None = None  # the run to repeat, where `primary` is its record
    chosen: Mapping[str, Any] = field(default_factory=dict)  # by the user's primary config

    @property
    def keys(self) -> set[str]:
        """The keys and groups that are overridden."""
        return {override.key_or_group for override in self.parsed}

    def several_files(self, group: str) -> list[str]:
        """Return the files chosen by `cluster=[a,b]`, here or in a file; [] for one or none."""
        overrides = [each.value() for each in self.parsed if each.key_or_group == group]
        chosen = overrides[-1] if overrides else self.chosen.get(group)
        return list(map(str, chosen)) if isinstance(chosen, list) else []

    @property
    def names_program(self) -> bool:
        """Whether the user says what to run, here or in a file."""
        return bool(self.record or self.replaces_program or "task" in self.chosen)

    @property
    def replaces_program(self) -> bool:
        """Whether the command line names another program than a record does."""
        return not self.keys.isdisjoint({"task", *rerun.TASK_PROGRAM_KEYS})


def merge(own: Path, shipped: Path) -> tuple[DictConfig, dict[str, Any]]:
    """Return the shipped file with the user's over it, and what the user's chooses by group.

    Every other group keeps the shipped choice. Raises ConfigError.
    """
    ours, theirs = _read(shipped), _read(own)
    our_list, their_list = ours.pop("defaults"), theirs.pop("defaults", None) or []
    if not isinstance(their_list, list):
        example = "such as defaults: [{cluster: mine}, {task: train}]"
        raise ConfigError([Problem(f"{display_path(own)}: defaults", "must be a list", example)])
    _require_choices(own, theirs, their_list)
    given = [_as_choice(entry) for entry in their_list if entry != SCHEMA]
    if any(str(entry).partition("@")[0] in (SHIPPED, f"/{SHIPPED}") for entry in given):
        where, hint = f"{display_path(own)}: defaults", "the shipped one is merged in without it"
        raise ConfigError([Problem(where, f"{SHIPPED} names this file itself; leave it out", hint)])
    keys = {_key(entry) for entry in given} - {""}
    kept = [entry for entry in our_list if _key(entry) not in keys and entry != SELF]
    entries = [*kept, *given, *([] if SELF in given else [SELF])]
    entries.sort(key=lambda entry: _key(entry).startswith("override "))
    merged = OmegaConf.merge(ours, theirs)
    config = OmegaConf.create({"defaults": entries, **_plain(merged)})
    pairs = [pair for entry in given if isinstance(entry, Mapping) for pair in entry.items()]
    return config, {str(key).rpartition(" ")[2]: value for key, value in pairs}


def _require_choices(own: Path, content: Mapping[Any, Any], defaults: Sequence[object]) -> None:
    """Refuse a choice of a file that stands beside `defaults`, or has no space after its colon."""
    choices = {f"{group}: {name}": name for group, name in content.items() if group in GROUPS}
    for entry in map(str, defaults):
        group, _, name = entry.partition(":")
        choices |= {entry: name} if group in GROUPS else {}
    for text, name in choices.items():
        if isinstance(name, str) and re.fullmatch(r"[\w-]+", name):
            group = text.partition(":")[0]
            hint = f"under `defaults:` write `- {group}: {name}`, with a space after the colon"
            raise ConfigError([Problem(f"{display_path(own)}: {text}", "chooses no file so", hint)])


def _read(file: Path) -> dict[Any, Any]:
    config = OmegaConf.load(file)
    if not isinstance(config, DictConfig):
        raise ConfigError([Problem(display_path(file), "must be a mapping of keys to values")])
    return _plain(config)


def _plain(config: Any) -> dict[Any, Any]:
    plain: Any = OmegaConf.to_container(config, resolve=False)
    return dict(plain)


def _as_choice(entry: object) -> object:
    """Return an entry of a list of defaults as GROUP: OPTION if it is another form of that.

    Such as `cluster/mine`, `/cluster: mine` or `cluster@cluster: mine`.
    """
    if isinstance(entry, str):
        path, at, package = entry.partition("@")
        group, _, option = path.rpartition("/")
        return _as_choice({group + at + package: option}) if group.strip("/") in GROUPS else entry
    if not isinstance(entry, Mapping):
        return entry
    form = re.compile(r"((?:override |optional )*)/?([^@/].*?)(?:@\2)?")
    matches = {form.fullmatch(str(key)): option for key, option in entry.items()}
    return {match[1] + match[2]: option for match, option in matches.items() if match} or entry


def _key(entry: object) -> str:
    """Return the group that an entry chooses, after `override` if that is there; or ""."""
    keys = entry if isinstance(entry, Mapping) else ()
    return "".join(str(key).replace("optional ", "") for key in keys)


def group_problems(
    files: ConfigFiles, words: Sequence[str], parsed: Sequence[Override]
) -> Iterator[Problem]:
    """Yield a problem for each choice of a group that names no file."""
    for word, override in zip(words, parsed, strict=True):
        group = override.key_or_group
        if group not in GROUPS or override.package is not None or override.is_sweep_override():
            continue
        options = ", ".join(files.options(group))
        if override.is_add() or override.is_force_add():
            hint = f"without a + it replaces the {group}: {word.lstrip('+')}"
            yield Problem(word, f"there is a {group} already", hint)
        elif not override.is_delete() and not isinstance(override.value(), (str, list, dict)):
            yield Problem(word, f"{group} takes the name of a file; there are {options}")


def default_task_problems(files: ConfigFiles, cluster: str) -> Iterator[Problem]:
    """Yield a problem unless the shipped default task is a first try: here, without YAML."""
    if cluster == "local" and not files.has_own:
        return
    tasks = files.options("task")
    own_cluster = next(iter(files.options("cluster", own_only=True)), cluster)
    chosen = cluster if cluster != "local" else own_cluster
    command = f"{this_program()} cluster={chosen} task={tasks[0]}"
    hint = f"{command}\nor a program: task.script=train.py; conf/runner.yaml may choose for all"
    yield Problem("task", f"there is no task to launch; choose one of {', '.join(tasks)}", hint)


def merged_nodes_notes(overrides: Sequence[Override], config: DictConfig) -> Iterator[str]:
    """Yield a note where `cluster.nodes={…}` reads as a replacement: Hydra merges mappings."""
    for override in overrides:
        is_mapping = f"{override.key_or_group}." == NODES_PREFIX and not override.is_delete()
        value = override.value() if is_mapping and not override.is_sweep_override() else None
        if isinstance(value, dict) and value and len(config.cluster.nodes) > len(value):
            names, only = ", ".join(map(str, config.cluster.nodes)), ",".join(map(str, value))
            message = f"cluster.nodes={{…}} adds to those of the YAML: {names}"
            yield f"{message}; cluster.only=[{only}] uses these alone"
