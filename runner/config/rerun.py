"""A past run once more: its record stands where the primary config and the chosen files would."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml
from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from runner.config.error_messages import shown
from runner.config.search_path import GROUPS
from runner.config.spec_builder import PROGRAM_KEYS
from runner.config.validation import nearest
from runner.core.codec import decode
from runner.core.errors import ConfigError, Problem
from runner.core.model.launch_request import Recorded
from runner.core.model.release import Code
from runner.core.model.spec import Spec

KEY = "rerun"
CONFIG = "_rerun_"
"""The name Hydra knows the record by: nobody calls a file of theirs that."""

OF_ONE_RUN = (KEY, "run_id", "run_dir", "dry_run")
PROGRAMS = frozenset(f"task.{key}" for key in PROGRAM_KEYS)
RUNS = "runs"
NEEDED = ("cluster", "task")
"""What every record has; those of earlier versions lack a rendezvous, and mean the static one."""

NAMED = 5
"""So many runs a message names, the latest ones."""

ELSEWHERE = (
    "stand in the folder you started it from, or name its folder: rerun=PATH/runs/RUN_ID; "
    "python -m runner pull --run RUN_ID --cluster NAME brings it here from its hosts"
)


@dataclass(frozen=True)
class Planned:
    """What is read of a recorded plan."""

    run_id: str
    cluster: str
    task: str
    release: str = ""
    commit: str = ""
    sub: str = ""
    script: str = ""
    tasks_hash: str = ""


@dataclass(frozen=True)
class Past:
    """A run on record.

    Attributes:
        planned: What was planned.
        config: Its configuration, interpolations unresolved, less what each run has of its own.
        where: The file that says so.
        date: When it was begun, "" where nobody knows.
    """

    planned: Planned
    config: DictConfig
    where: Path
    date: str = ""

    def kept(self, chosen: Collection[str]) -> dict[Any, Any]:
        """Return what counts of it where another file is taken of the groups `chosen`."""
        content = _content(self.config)
        return {key: value for key, value in content.items() if key not in {*chosen} & {*GROUPS}}

    def primary(self, chosen: Collection[str], ours: Path) -> DictConfig:
        """Return it as a primary config of Hydra's.

        Args:
            chosen: The groups of which another file is taken; other keys count for nothing.
            ours: The shipped primary config: what it says of Hydra itself holds here too.
        """
        shipped: Any = OmegaConf.to_container(OmegaConf.load(ours), resolve=False)
        of_hydra = [
            entry
            for entry in shipped["defaults"]
            if isinstance(entry, dict) and any(key.startswith("override ") for key in entry)
        ]
        # After `_self_`: a file that is chosen now wins over the record.
        groups: list[Any] = [{group: None} for group in GROUPS]
        defaults = ["runner_base", "_self_", *groups, *of_hydra]
        return OmegaConf.create(
            {"defaults": defaults, "hydra": shipped["hydra"], **self.kept(chosen)}
        )

    def again(
        self, spec: Spec, words: Sequence[str], *, same: bool
    ) -> tuple[Recorded | None, tuple[str, ...]]:
        """Return the code to run with, and what is to be said of it.

        Args:
            spec: What is to run now.
            words: What the command line says.
            same: Whether it is the program on record.
        """
        planned = self.planned
        changes = [word for word in words if word.lstrip("+~").partition("=")[0] not in OF_ONE_RUN]
        on = f" on {self.date}" if self.date else ""
        but = f", with {' '.join(changes)}" if changes else ""
        notes = [f"again: run {planned.run_id} as recorded{on}{but}"]
        code = Code()
        if spec.task.shipped:
            code = Code(tasks_hash=planned.tasks_hash if same else "")
        elif spec.pushes and planned.release:
            script = planned.script if same else ""
            code = Code("", planned.release, planned.sub, script, planned.commit)
        elif spec.pushes:
            notes.append(f"run {planned.run_id} had no release: the code you stand in is what runs")
        else:
            other = f", not release {planned.release}" if planned.release else ""
            notes.append(f"the code is what is in {spec.project} on the hosts now{other}")
        return (Recorded(planned.run_id, code) if code != Code() else None), tuple(notes)


def replaces_program(changes: Sequence[Override]) -> bool:
    """Whether the command line names another program than the record does."""
    return any(each.key_or_group in {"task", *PROGRAMS} for each in changes)


def named(overrides: Sequence[Override]) -> str | None:
    """Return which run is to be done again, if one is.

    Raises:
        ConfigError: It is not one.
    """
    asked = [each for each in overrides if each.key_or_group == KEY and not each.is_delete()]
    if not asked:
        return None
    last = asked[-1]
    if last.is_sweep_override():
        hint = "the other keys may have several values, with --multirun"
        raise ConfigError([Problem(str(last.input_line), "rerun names one run", hint)])
    value = last.value()
    if value is None:
        return None
    if isinstance(value, (list, dict)) or value == "":
        what = "rerun names a run, such as rerun=latest"
        raise ConfigError([Problem(str(last.input_line), what)])
    # As it was typed, because Hydra takes some run ids for numbers.
    return value if isinstance(value, str) else str(last.input_line).partition("=")[2]


def find(name: str, here: Path) -> Past:
    """Return a run that this machine has on record: below `runs` of a folder, or at a path.

    Raises:
        ConfigError: There is none of that name, or the record is not whole.
    """
    folder = here / Path(name).expanduser() if "/" in name else here / RUNS / name
    if not folder.is_dir():
        raise ConfigError([_missing(name, folder, here / RUNS)])
    folder = folder.resolve() if folder.is_symlink() else folder  # latest
    texts: dict[str, str] = {}
    for each in ("config.yaml", "plan.json"):
        try:
            texts[each] = (folder / each).read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise ConfigError([_damaged(folder / each, reason[:1].lower() + reason[1:])]) from error
    try:
        plan = json.loads(texts["plan.json"])
    except ValueError as error:
        raise ConfigError([_damaged(folder / "plan.json", str(error))]) from error
    return past(texts["config.yaml"], plan, folder / "config.yaml", _began(folder))


def past(config_yaml: str, plan: object, where: Path, began: float | None = None) -> Past:
    """Return a run from its record, wherever that was found.

    Args:
        config_yaml: The composed configuration, its interpolations unresolved.
        plan: The plan as plain data.
        where: What messages call the place of the configuration.
        began: When the run was begun, in seconds since 1970.

    Raises:
        ConfigError: It is not whole.
    """
    try:
        planned = decode(Planned, plan)
        config = OmegaConf.create(config_yaml)
    except ValueError as error:
        raise ConfigError([_damaged(where.with_name("plan.json"), str(error))]) from error
    except (yaml.YAMLError, OmegaConfBaseException) as error:
        raise ConfigError([_damaged(where, " ".join(str(error).split()))]) from error
    if not isinstance(config, DictConfig):
        raise ConfigError([_damaged(where, "it is a list")])
    lacking = [group for group in NEEDED if not OmegaConf.is_dict(config.get(group))]
    if lacking:
        raise ConfigError([_damaged(where, f"it has no {lacking[0]}")])
    spread = "${" in str(_content(config).get("run_dir", ""))  # not the folder of that one run
    for key in OF_ONE_RUN:
        if key != "run_dir" or not spread:
            config.pop(key, None)
    date = f"{datetime.fromtimestamp(began).astimezone():%Y-%m-%d %H:%M}" if began else ""
    return Past(planned, config, where, date)


def misplaced(value: object) -> Problem:
    """Return the problem of a file that asks for a run of the past."""
    return Problem(KEY, "is for the command line only", f"such as python -m runner {KEY}={value}")


def _content(config: DictConfig) -> dict[Any, Any]:
    content: Any = OmegaConf.to_container(config, resolve=False)
    return dict(content)


def _began(folder: Path) -> float | None:
    """Return when a run was begun, or at least written down."""
    try:
        return float(json.loads((folder / "result.json").read_text(encoding="utf-8"))["began"])
    except (OSError, ValueError, KeyError, TypeError):
        return (folder / "plan.json").stat().st_mtime


def _missing(name: str, folder: Path, runs: Path) -> Problem:
    if "/" in name:
        return Problem(KEY, f"there is no folder {shown(folder)}", ELSEWHERE)
    records = [each for each in runs.glob("*/plan.json") if not each.parent.is_symlink()]
    if not records:
        return Problem(KEY, f"there is no run {name}: none is on record in {runs}", ELSEWHERE)
    records.sort(key=lambda record: record.stat().st_mtime, reverse=True)
    there = [record.parent.name for record in records]
    more = f" and {len(there) - NAMED} older ones" if len(there) > NAMED else ""
    what = f"there is no run {name} in {shown(runs)}; there are {', '.join(there[:NAMED])}{more}"
    return Problem(KEY, what, nearest(name, there, f"{KEY}=") or ELSEWHERE)


def _damaged(file: Path, reason: str) -> Problem:
    what = f"the record of that run is not whole: {reason}"
    return Problem(shown(file), what, "it cannot be done again; start it anew, without rerun")
