"""Rerun of a past run: its record takes the place of the primary config and its files."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, cast

import yaml
from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from runner.config.error_messages import lower_first
from runner.config.overrides import override_key
from runner.config.schema import GROUPS
from runner.config.search_path import display_path
from runner.config.task import PROGRAM_KEYS
from runner.config.validation import suggest
from runner.control.record import run_index
from runner.control.record.file_names import (
    CONFIG_FILE,
    CONTACT_FILE,
    ORIGIN_FILE,
    PLAN_FILE,
    RESULT_FILE,
    SWEEP_FILE,
)
from runner.control.record.run_index import RUNS_FOLDER
from runner.core.codec import decode
from runner.core.errors import ConfigError, Problem, reason_of
from runner.core.model.release import CodeRef
from runner.core.model.spec import RecordedCode, Spec, are_local
from runner.core.shell import expand_home, this_program
from runner.core.text import join_some

KEY = "rerun"
CONFIG_NAME = "_rerun_"
"""The name of the record for Hydra; no file of a user has it."""

PER_RUN_KEYS = (KEY, "run_id", "run_dir", "dry_run")
TASK_PROGRAM_KEYS = frozenset(f"task.{key}" for key in PROGRAM_KEYS)
MAX_LISTED = 5
"""The number of runs a message lists, the latest ones."""


@dataclass(frozen=True)
class RecordedNode:
    """The part of a node's plan that a rerun needs."""

    cwd: str = ""


@dataclass(frozen=True)
class RecordedPlan:
    """The part of a recorded plan that a rerun needs."""

    run_id: str
    cluster: str
    task: str
    release: str = ""
    commit: str = ""
    subdirectory: str = ""
    script: str = ""
    tasks_hash: str = ""
    nodes: tuple[RecordedNode, ...] = ()


@dataclass(frozen=True)
class RecordedRun:
    """A run on record."""

    plan: RecordedPlan
    config: DictConfig  # unresolved, without the keys that each run sets itself
    config_file: Path
    date: str = ""  # of its launch, if that is on record
    hosts: tuple[str, ...] = ()  # that this record came from, if it was not made by a launch

    def primary_config(self, replaced_groups: Collection[str], shipped_file: Path) -> DictConfig:
        """Return the configuration as a primary config, with the shipped settings of Hydra.

        It lacks the groups for which another file is chosen.
        """
        shipped: Any = OmegaConf.to_container(OmegaConf.load(shipped_file), resolve=False)
        mappings = [entry for entry in shipped["defaults"] if isinstance(entry, dict)]
        hydra_entries = [m for m in mappings if any(key.startswith("override ") for key in m)]
        # After `_self_`: a file that is chosen now wins over the record.
        groups: list[Any] = [{group: None} for group in GROUPS]
        defaults = ["runner_base", "_self_", *groups, *hydra_entries]
        replaced = {*replaced_groups} & {*GROUPS}
        content = {k: v for k, v in _as_dict(self.config).items() if k not in replaced}
        return OmegaConf.create({"defaults": defaults, "hydra": shipped["hydra"], **content})

    def code_to_run(
        self, spec: Spec, overrides: Sequence[str], *, is_same_program: bool
    ) -> tuple[RecordedCode | None, tuple[str, ...]]:
        """Return the code to run, and notes about it."""
        plan = self.plan
        keys = {word: override_key(word) for word in overrides}
        changes = [word for word in overrides if keys[word] not in PER_RUN_KEYS]
        date = f" on {self.date}" if self.date else ""
        changed_text = f", with {' '.join(changes)}" if changes else ""
        notes = [f"again: run {plan.run_id} as recorded{date}{changed_text}"]
        if spec.detach and "detach" not in keys.values():
            notes.append("it is detached, as that run was; detach=false follows it")
        code = CodeRef()
        if spec.task.shipped_file:
            code = CodeRef(tasks_hash=plan.tasks_hash if is_same_program else "")
        elif spec.pushes_code and plan.release:
            script = plan.script if is_same_program else ""
            code = CodeRef("", plan.release, plan.subdirectory, script, plan.commit)
        elif spec.pushes_code:
            notes.append(f"run {plan.run_id} had no release: the code you stand in is what runs")
        else:
            not_release = f", not release {plan.release}" if plan.release else ""
            place = "this folder" if are_local(spec.nodes) else f"{spec.project} on the hosts"
            notes.append(f"the code is what is in {place} now{not_release}")
        if code == CodeRef():
            return None, tuple(notes)
        places = run_index.code_places(self.config_file.parent)
        return RecordedCode(plan.run_id, code, places), tuple(notes)


def requested_run(overrides: Sequence[Override]) -> str | None:
    """Return the run that `rerun` names, if it is set, or raise ConfigError."""
    settings = [o for o in overrides if o.key_or_group == KEY and not o.is_delete()]
    if not settings:
        return None
    last = settings[-1]
    if last.is_sweep_override():
        hint = "the other keys may have several values, with --multirun"
        raise ConfigError([Problem(str(last.input_line), "rerun names one run", hint)])
    value = last.value()
    if value is None:
        return None
    if isinstance(value, (list, dict)) or value == "":
        message = "rerun names a run, such as rerun=latest"
        raise ConfigError([Problem(str(last.input_line), message)])
    # As typed, because Hydra reads some run ids as numbers.
    return value if isinstance(value, str) else str(last.input_line).partition("=")[2]


def find_record(name: str, cwd: Path) -> RecordedRun:
    """Return a run on record on this machine, by its id or at a path, or raise ConfigError."""
    if "/" in name:
        folder = cwd / expand_home(name)
    else:
        folder = run_index.record_folder(name) or cwd / RUNS_FOLDER / name
    if not folder.is_dir():
        raise ConfigError([_no_such_run(name, folder, cwd / RUNS_FOLDER)])
    folder = folder.resolve() if folder.is_symlink() else folder  # latest
    config_file, plan_file = folder / CONFIG_FILE, folder / "plan.0.json"
    if not plan_file.exists():  # that of a later attempt may have come from its hosts
        plan_file = folder / PLAN_FILE
    if (folder / SWEEP_FILE).exists() and not config_file.exists():
        message = f"{name} is a sweep, whose runs are in {display_path(folder / SWEEP_FILE)}"
        raise ConfigError([Problem(KEY, message, "repeat one of them: rerun=RUN_ID")])
    texts = []
    for file in (config_file, plan_file):
        try:
            texts.append(file.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ConfigError([_damaged(file, lower_first(reason_of(error)))]) from error
    config_yaml, plan_json = texts
    try:
        plan = json.loads(plan_json)
    except ValueError as error:
        raise ConfigError([_damaged(plan_file, str(error))]) from error
    run = recorded_run(config_yaml, plan, config_file, _launch_time(folder))
    hosts = _hosts_of_origin(folder)
    if hosts:  # whose pattern could take for ever on a line
        run.config.pop("progress", None)
    return replace(run, hosts=hosts)


def recorded_run(
    config_yaml: str, plan: object, where: Path, launch_time: float | None = None
) -> RecordedRun:
    """Return a run from its record; `where` is the place of its configuration, for messages."""
    try:
        recorded_plan = decode(RecordedPlan, plan)
        config = OmegaConf.create(config_yaml)
    except ValueError as error:
        raise ConfigError([_damaged(where.with_name(PLAN_FILE), str(error))]) from error
    except (yaml.YAMLError, OmegaConfBaseException) as error:
        raise ConfigError([_damaged(where, " ".join(str(error).split()))]) from error
    if not isinstance(config, DictConfig):
        raise ConfigError([_damaged(where, "it is a list")])
    for group in ("cluster", "task"):
        if not OmegaConf.is_dict(config.get(group)):
            raise ConfigError([_damaged(where, f"it has no {group}")])
    project = _as_dict(config)["cluster"].get("project")
    runs_there = recorded_plan.nodes and not (recorded_plan.release or recorded_plan.tasks_hash)
    if runs_there and isinstance(project, str) and not project.startswith(("/", "~", "$")):
        config.cluster.project = recorded_plan.nodes[0].cwd  # not below the folder of now
    for key in ("defaults", "hydra"):  # no record of ours has them: Hydra calls what they name
        config.pop(key, None)
    is_per_run = "${" in str(_as_dict(config).get("run_dir", ""))  # not the folder of that one run
    for key in PER_RUN_KEYS:
        if key != "run_dir" or not is_per_run:
            config.pop(key, None)
    time = datetime.fromtimestamp(launch_time).astimezone() if launch_time else None
    return RecordedRun(recorded_plan, config, where, f"{time:%Y-%m-%d %H:%M}" if time else "")


def _as_dict(config: DictConfig) -> dict[Any, Any]:
    return dict(cast("Any", OmegaConf.to_container(config, resolve=False)))


def _launch_time(folder: Path) -> float | None:
    """Return the time of the launch, or else of its record."""
    try:
        return float(json.loads((folder / RESULT_FILE).read_text(encoding="utf-8"))["began"])
    except (OSError, ValueError, KeyError, TypeError):
        return (folder / PLAN_FILE).stat().st_mtime


def _hosts_of_origin(folder: Path) -> tuple[str, ...]:
    """Return the hosts that a record came from; none if a launch made it."""
    file = folder / ORIGIN_FILE
    if not file.exists():  # what `pull` puts below `hosts` has neither file
        return () if (folder / CONTACT_FILE).exists() else ("a host",)
    try:
        return tuple(map(str, json.loads(file.read_text(encoding="utf-8"))["hosts"])) or ("a host",)
    except (OSError, ValueError, KeyError, TypeError):
        return ("a host",)


def _elsewhere_hint() -> str:
    command = f"{this_program()} pull --run RUN_ID --cluster NAME"
    return f"name its folder: rerun=PATH/runs/RUN_ID; `{command}` brings it here from its hosts"


def _no_such_run(name: str, folder: Path, runs: Path) -> Problem:
    if "/" in name:
        return Problem(KEY, f"there is no folder {display_path(folder)}", _elsewhere_hint())
    run_names = [*run_index.records().values()]
    if not run_names:
        message = f"there is no run {name}: none is on record in {runs}"
        return Problem(KEY, message, _elsewhere_hint())
    listed = join_some(run_names, MAX_LISTED, "older ones")
    message = f"there is no run {name} on record on this machine; there are {listed}"
    return Problem(KEY, message, suggest(name, run_names, f"{KEY}=") or _elsewhere_hint())


def _damaged(file: Path, reason: str) -> Problem:
    message = f"the record of that run is damaged: {reason}"
    return Problem(display_path(file), message, "it cannot be repeated; launch it without rerun")
