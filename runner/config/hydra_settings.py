"""Hydra's settings: the schema that it composes by, and what a launch cannot honour.

The latter is refused by name, with what takes its place.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from operator import getitem
from typing import Any, cast

from hydra.conf import HydraConf
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf

from runner.config.schema import GROUPS, RunnerConfig
from runner.core.errors import Problem

RUNS_HINT = "run_dir=PATH/${run_id} sets where records go"
ALTERNATIVES = (
    (r"hydra/sweeper|hydra\.sweeper\.(?!params\b).*", "values joined by commas make the runs"),
    (r"hydra/launcher|hydra\.launcher\b.*", "a sweep starts its runs one after the other"),
    (r"hydra\.(run|sweep)\.dir|hydra\.sweep(\.subdir)?|hydra\.run|hydra\.output_subdir", RUNS_HINT),
    (r"hydra\.job\.chdir", "ranks work in a copy of the code; task.outputs names what comes home"),
    (r"hydra\.job\.name", "run_id=NAME names the run, task.name the task"),
    (r"hydra\.job\.env_set\b.*", "task.env.NAME=VALUE sets a variable of the ranks"),
    (r"hydra\.job\.env_copy", "cluster.pass_env=[NAME] copies variables to the ranks"),
    (r"hydra\.job\.(id|num|config_name|override_dirname)", "leave it out"),
    (r"hydra\.mode", "-m on the command line makes a sweep"),
    (r"hydra[./]callbacks\b.*", "leave it out"),
)
"""The settings without effect, as patterns of their keys, and what to do instead."""

USUAL_VALUES: Mapping[str, object] = {
    "hydra.run.dir": "outputs/${now:%Y-%m-%d}/${now:%H-%M-%S}",
    "hydra.sweep.subdir": "${hydra.job.num}",
    "hydra.output_subdir": None,
    "hydra.callbacks": {},
    "hydra.job.chdir": None,
    "hydra.job.env_set": {},
}
"""Hydra's own values of those that only a user sets: not `hydra.sweep.dir`, which a sweep sets."""

OUTPUT_FOLDER = re.compile(r"\$\{hydra:\s*(?:runtime\.output_dir|run\.dir|sweep\.\w+)\s*\}")
OUTPUT_HINT = (
    "ranks write to their working folder, and task.outputs=[NAME] brings files to runs/RUN_ID\n"
    "${run_id} is the name of the run, such as in an absolute path on the hosts"
)


def override_problems(overrides: Sequence[Override]) -> Iterator[Problem]:
    """Yield a problem for every override of a setting that has no effect."""
    for override in overrides:
        is_default = str(override.input_line) in ("hydra/launcher=basic", "hydra/sweeper=basic")
        if not is_default and (hint := _alternative(override.key_or_group)):
            yield _problem(str(override.input_line), hint)


def setting_problems(hydra: HydraConf) -> Iterator[Problem]:
    """Yield a problem for every plug-in that YAML chooses, and every setting without effect."""
    for group in ("hydra/launcher", "hydra/sweeper"):
        if (choice := hydra.runtime.choices.get(group, "basic")) != "basic":
            yield _problem(f"{group}: {choice}", _alternative(group))
    composed: Any = OmegaConf.to_container(cast("Any", hydra), resolve=False)
    for key, usual in USUAL_VALUES.items():
        if functools.reduce(getitem, key.split("."), {"hydra": composed}) != usual:
            yield _problem(key, _alternative(key))


def output_folder_problems(config: Any, key: str = "") -> Iterator[Problem]:
    """Yield a problem for every value that refers to Hydra's output folder, which is not made."""
    if isinstance(config, (dict, list)):
        items = config.items() if isinstance(config, dict) else enumerate(config)
        for name, value in items:
            yield from output_folder_problems(value, f"{key}.{name}".lstrip("."))
    elif isinstance(config, str) and (match := OUTPUT_FOLDER.search(config)):
        message = f"{match[0]} has no value: a launch makes no such folder of Hydra"
        yield Problem(key, message, OUTPUT_HINT)


def _alternative(key: str) -> str:
    return next((hint for pattern, hint in ALTERNATIVES if re.fullmatch(pattern, key)), "")


def _problem(setting: str, hint: str) -> Problem:
    return Problem(setting, "this setting of Hydra has no effect on a launch", hint)


def register() -> None:
    """Register the schema with Hydra, as `runner_base`, `cluster/base` and so on."""
    store, schema = ConfigStore.instance(), open_schema()
    store.store(name="runner_base", node=schema)
    for group in GROUPS:
        store.store(group=group, name="base", node=schema[group])
    # For clusters of this machine: the first python3 on PATH may lack torch.
    OmegaConf.register_new_resolver("this_python", lambda: sys.executable, replace=True)


def with_defaults(config: Any) -> DictConfig:
    """Return a configuration with every key of the schema, including those that ~KEY removed."""
    merged = OmegaConf.merge(open_schema(), config)
    assert isinstance(merged, DictConfig)  # noqa: S101 (for mypy: a mapping was merged)
    return merged


@functools.cache
def open_schema() -> DictConfig:
    """Return the schema, so that it takes any key: after composition, unknown ones are reported.

    It is one object for all callers, who copy it.
    """
    opened: DictConfig = OmegaConf.structured(RunnerConfig)
    pending = [opened]
    for config in pending:
        OmegaConf.set_struct(config, value=False)
        pending += [node for node in config.values() if isinstance(node, DictConfig)]
    return opened
