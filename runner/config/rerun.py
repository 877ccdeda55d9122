"""Rerun of a past run: its record takes the place of the primary config and its files."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from runner.config import words
from runner.config.errors import lower_first
from runner.config.kinds import suggest
from runner.config.source import SCHEMA, display_path, parse
from runner.control.record import run_index
from runner.control.record.file_names import (
    CONFIG_FILE,
    CONTACT_FILE,
    JOB_FILE,
    ORIGIN_FILE,
    PLAN_FILE,
    RESULT_FILE,
    SWEEP_FILE,
)
from runner.control.record.run_index import RUNS_FOLDER
from runner.core.codec import decode
from runner.core.errors import ConfigError, Problem, reason_of
from runner.core.launch_request import RecordedCode
from runner.core.model.release import CodeRef
from runner.core.shell import expand_home, this_program
from runner.core.spec import GROUPS, Spec, are_local
from runner.core.text import join_some

KEY = "rerun"
PER_RUN_KEYS = (KEY, "run_id", "run_dir", "dry_run")
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

    def primary_config(self, replaced: Collection[str]) -> DictConfig:
        """Return it as a primary config without the groups for which another file is chosen."""
        content: Any = OmegaConf.to_container(self.config, resolve=False)
        kept = {
            name: value for name, value in content.items() if name not in {*replaced} & {*GROUPS}
        }
        # After `_self_`: a file that is chosen now wins over the record.
        choices = [{group: None} for group in GROUPS]
        return OmegaConf.create({"defaults": [SCHEMA, "_self_", *choices], **kept})

    def code_to_run(
        self, spec: Spec, typed: Sequence[str], *, is_same_program: bool
    ) -> tuple[RecordedCode | None, list[str]]:
        """Return the code to run, and notes about it."""
        plan = self.plan
        keys = [words.key_of(word) for word in typed]
        changes = [word for word in typed if words.key_of(word) not in PER_RUN_KEYS]
        date = f" on {self.date}" if self.date else ""
        changed_text = f", with {' '.join(changes)}" if changes else ""
        notes: list[str] = []
        if spec.run_id != plan.run_id:  # not the launch in a job that was submitted for it
            notes.append(f"again: run {plan.run_id} as recorded{date}{changed_text}")
        if spec.detach and "detach" not in keys:
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
            place = f"{spec.cluster.project} on the hosts"
            if are_local(spec.nodes):
                place = "this folder"
            notes.append(f"the code is what is in {place} now{not_release}")
        if code == CodeRef():
            return None, notes
        places = run_index.code_places(self.config_file.parent)
        return RecordedCode(plan.run_id, code, places), notes


def find_record(name: str, cwd: Path) -> RecordedRun:
    """Return a run on record on this machine, by its id or at a path, or raise ConfigError."""
    if "/" in name:
        folder = cwd / expand_home(name)
    else:
        folder = run_index.record_folder(name) or cwd / RUNS_FOLDER / name
    if not folder.is_dir():
        raise ConfigError([_no_such_run(name, folder, cwd / RUNS_FOLDER)])
    folder = folder.resolve() if folder.is_symlink() else folder  # latest
    config_file = folder / CONFIG_FILE
    plan_file = folder / "plan.0.json"
    if not plan_file.exists():  # that of a later attempt may have come from its hosts
        plan_file = folder / PLAN_FILE
    if (folder / JOB_FILE).exists():  # the run may not have begun
        plan_file = folder / JOB_FILE
    if (folder / SWEEP_FILE).exists() and not config_file.exists():
        message = f"{name} is a sweep, whose runs are in {display_path(folder / SWEEP_FILE)}"
        raise ConfigError([Problem(KEY, message, "repeat one of them: rerun=RUN_ID")])
    file = plan_file
    try:
        plan = decode(RecordedPlan, json.loads(plan_file.read_text(encoding="utf-8")))
        file = config_file
        config_yaml = config_file.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ConfigError([_damaged(file, lower_first(reason_of(error)))]) from error
    run = recorded_run(config_yaml, plan, config_file)
    time = datetime.fromtimestamp(_launch_time(folder)).astimezone()
    hosts = _hosts_of_origin(folder)
    if hosts:  # whose pattern could take for ever on a line
        run.config.pop("progress", None)
    return replace(run, hosts=hosts, date=f"{time:%Y-%m-%d %H:%M}")


def recorded_run(config_yaml: str, plan: RecordedPlan, where: Path) -> RecordedRun:
    """Return a run from its record; `where` is the place of its configuration, for messages."""
    try:
        content = parse(config_yaml, where).content
    except ConfigError as error:
        raise ConfigError([_damaged(where, error.problems[0].message)]) from error
    for group in ("cluster", "task"):
        if not isinstance(content.get(group), dict):
            raise ConfigError([_damaged(where, f"it has no {group}")])
    project = content["cluster"].get("project")
    runs_there = plan.nodes and not (plan.release or plan.tasks_hash)
    if runs_there and isinstance(project, str) and not project.startswith(("/", "~", "$")):
        content["cluster"]["project"] = plan.nodes[0].cwd  # not below the folder of now
    for key in ("defaults", "hydra"):  # no record of ours has them: Hydra calls what they name
        content.pop(key, None)
    is_per_run = "${" in str(content.get("run_dir", ""))  # not the folder of that one run
    for key in PER_RUN_KEYS:
        if key != "run_dir" or not is_per_run:
            content.pop(key, None)
    return RecordedRun(plan, OmegaConf.create(content), where)


def _launch_time(folder: Path) -> float:
    """Return the time of the launch, or else of its record."""
    try:
        return float(json.loads((folder / RESULT_FILE).read_text(encoding="utf-8"))["began"])
    except (OSError, ValueError, KeyError, TypeError):
        return (folder / CONFIG_FILE).stat().st_mtime


def _hosts_of_origin(folder: Path) -> tuple[str, ...]:
    """Return the hosts that a record came from; none if a launch made it."""
    file = folder / ORIGIN_FILE
    if not file.exists():  # what `pull` puts below `hosts` has neither file
        return () if (folder / CONTACT_FILE).exists() else ("a host",)
    try:
        return tuple(map(str, json.loads(file.read_text(encoding="utf-8"))["hosts"])) or ("a host",)
    except (OSError, ValueError, KeyError, TypeError):
        return ("a host",)


def _no_such_run(name: str, folder: Path, runs: Path) -> Problem:
    command = f"{this_program()} pull --run RUN_ID --cluster NAME"
    elsewhere = f"name its folder: rerun=PATH/runs/RUN_ID; `{command}` brings it here"
    if "/" in name:
        return Problem(KEY, f"there is no folder {display_path(folder)}", elsewhere)
    run_names = [*run_index.records().values()]
    if not run_names:
        message = f"there is no run {name}: none is on record in {runs}"
        return Problem(KEY, message, elsewhere)
    listed = join_some(run_names, MAX_LISTED, "older ones")
    message = f"there is no run {name} on record on this machine; there are {listed}"
    return Problem(KEY, message, suggest(name, run_names, f"{KEY}=") or elsewhere)


def _damaged(file: Path, reason: str) -> Problem:
    message = f"the record of that run is damaged: {reason}"
    return Problem(display_path(file), message, "it cannot be repeated; launch it without rerun")
