"""Rerun of a past run: its record takes the place of the primary config and its files."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from runner.config import words
from runner.config.source import SCHEMA, display_path, parse
from runner.control.record import run_index
from runner.control.record.launch_record import (
    CONFIG_FILE,
    JOB_FILE,
    LATEST,
    OVERRIDES_FILE,
    PLAN_FILE,
    SWEEP_FILE,
)
from runner.control.record.run_index import RUNS_FOLDER
from runner.core.errors import ConfigError, Problem, reason_of, suggest
from runner.core.launch_request import RecordedCode
from runner.core.shell import expand_home
from runner.core.spec import GROUPS, Spec, are_local
from runner.core.wire.codec import decode
from runner.core.wire.plan import CodeRef, Plan
from runner.core.wire.text import join_some

KEY = "rerun"
PER_RUN_KEYS = (KEY, "run_id", "run_dir", "dry_run")


@dataclass(frozen=True)
class RecordedRun:
    plan: Plan
    content: dict[str, Any]  # unresolved, without the keys that each run sets itself
    config_file: Path

    def primary_config(self, replaced: Collection[str]) -> DictConfig:
        """Return it as a primary config without the groups for which another file is chosen."""
        left_out = {group for group in GROUPS if group in replaced}
        content = {key: value for key, value in self.content.items() if key not in left_out}
        # After `_self_`: a file that is chosen now wins over the record.
        choices = [{group: None} for group in GROUPS]
        return OmegaConf.create({"defaults": [SCHEMA, "_self_", *choices], **content})

    def code_to_run(
        self, spec: Spec, typed: Sequence[str], *, is_same_program: bool
    ) -> tuple[RecordedCode | None, list[str]]:
        """Return the code to run, and notes about it."""
        plan = self.plan
        changes = [word for word in typed if words.key_of(word) not in PER_RUN_KEYS]
        with_changes = f", with {' '.join(changes)}" if changes else ""
        notes = [f"again: run {plan.run_id} as recorded{with_changes}"]
        if spec.run_id == plan.run_id:  # the launch in the job that was submitted for it
            notes = []
        if spec.detach and not any(words.key_of(word) == "detach" for word in typed):
            notes.append("it is detached, as that run was; detach=false follows it")
        keep_place = plan.keep_place if is_same_program else ""
        code = CodeRef()
        if spec.task.shipped_file and is_same_program:
            code = CodeRef(tasks_hash=plan.tasks_hash, keep_place=keep_place)
        elif spec.pushes_code and plan.release:
            code = CodeRef(
                release=plan.release,
                subdirectory=plan.subdirectory,
                script=plan.script if is_same_program else "",
                commit=plan.commit,
                python_path=plan.python_path,
                keep_place=keep_place,
            )
        elif spec.pushes_code:
            notes.append(f"run {plan.run_id} had no release: the code you stand in is what runs")
        elif not spec.task.shipped_file:
            project = f"{spec.cluster.project} on the hosts"
            place = "this folder" if are_local(spec.nodes) else project
            other = f", not release {plan.release}" if plan.release else ""
            notes.append(f"the code is what is in {place} now{other}")
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
    if not name or not folder.is_dir():
        raise ConfigError([_no_such_run(name, folder)])
    folder = folder.resolve() if folder.is_symlink() else folder  # latest
    config_file = folder / CONFIG_FILE
    if config_file.exists() and not (folder / OVERRIDES_FILE).exists():
        message = "this machine has that run from its hosts: no launch here made the record"
        hint = f"{display_path(config_file)} has what ran; launch it by your own YAML"
        raise ConfigError([Problem(KEY, message, f"{hint}\nverbs take --cluster NAME")])
    plan_file = folder / "plan.0.json"
    if not plan_file.exists():  # that of a later attempt may have come from its hosts
        plan_file = folder / PLAN_FILE
    if not plan_file.exists() and (folder / JOB_FILE).exists():  # its job has not begun it
        plan_file = folder / JOB_FILE
    if (folder / SWEEP_FILE).exists() and not config_file.exists():
        message = f"{name} is a sweep, whose runs are in {display_path(folder / SWEEP_FILE)}"
        raise ConfigError([Problem(KEY, message, "repeat one of them: rerun=RUN_ID")])
    file = plan_file
    try:
        plan = decode(Plan, json.loads(plan_file.read_text(encoding="utf-8")))
        file = config_file
        content = parse(config_file.read_text(encoding="utf-8"), config_file).content
        if not all(isinstance(content.get(group), dict) for group in ("cluster", "task")):
            raise ValueError("it has no cluster or no task")
    except (ConfigError, OSError, ValueError) as error:
        reason = error.problems[0].message if isinstance(error, ConfigError) else reason_of(error)
        message = f"the record of that run is damaged: {reason}"
        hint = "it cannot be repeated; launch it without rerun"
        raise ConfigError([Problem(display_path(file), message, hint)]) from error
    project = content["cluster"].get("project")
    runs_there = plan.nodes and not (plan.release or plan.tasks_hash)
    if runs_there and isinstance(project, str) and not project.startswith(("/", "~", "$")):
        content["cluster"]["project"] = plan.nodes[0].cwd  # not below the folder of now
    dropped = [*PER_RUN_KEYS, "defaults", "hydra"]  # Hydra would call what the last two name
    if "${" in str(content.get("run_dir", "")):  # not the folder of that one run
        dropped.remove("run_dir")
    for key in dropped:
        content.pop(key, None)
    return RecordedRun(plan, content, config_file)


def _no_such_run(name: str, folder: Path) -> Problem:
    if not name:
        return Problem("rerun=", "rerun names one run, such as rerun=latest")
    elsewhere = "name its folder, where it was launched: rerun=PATH/runs/RUN_ID"
    if "/" in name:
        return Problem(KEY, f"there is no folder {display_path(folder)}", elsewhere)
    run_names = [*run_index.records().values()]
    listed = join_some(run_names) if run_names else "none"
    message = f"there is no run {name} on record on this machine; there are {listed}"
    if name == LATEST:
        message = f"no run was launched from this folder; on record are {listed}"
    return Problem(KEY, message, suggest(name, run_names, f"{KEY}=") or elsewhere)
