"""Contact settings: the keys by which hosts are reached; a verb resolves and judges no others.

Task, environment and secrets are a launch's: without them a run can still be found and stopped.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Sequence
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from runner.config.error_messages import resolve_to_plain
from runner.config.hydra_settings import open_schema
from runner.config.overrides import chosen_cluster, override_key
from runner.config.schema import RunnerConfig
from runner.config.schema.cluster import ClusterConfig
from runner.core.errors import Problem

CONTACT_KEYS = (
    *("cluster.scheduler", "cluster.login_node"),
    *("cluster.transport", "cluster.nodes", "cluster.only", "cluster.exclude", "cluster.ssh"),
    *("cluster.host_python", "cluster.workdir", "run_id", "run_dir", "ui", "console_ranks"),
    *("grace_s", "lost_s", "disconnect_s", "pull_outputs", "progress.pattern"),
)
CONTACT_CHOICES = ("task=base", "rendezvous=static")
"""Choices of files that always compose, for groups that reach no host."""

_IF_RESOLVED = ("cluster.setup", "cluster.project")
"""They may bring the interpreter; without their variables, it may be there all the same."""

_CLUSTER_KEYS = {f"cluster.{option.name}" for option in dataclasses.fields(ClusterConfig)}
_NODE_ENV = re.compile(r"cluster\.nodes\..+\.env(\..*)?")
_NO_TASK = {"command": "true"}
"""Stands for the task: a specification has one."""


def contact_values(
    config: DictConfig, more_keys: Collection[str], problems: list[Problem]
) -> dict[str, Any]:
    """Return the composed values of the contact keys and of `more_keys`, the default of all others.

    What cannot be resolved of them is added to `problems`.
    """
    keys = {*CONTACT_KEYS, *more_keys}
    keys.update(key for key in _IF_RESOLVED if _can_be_resolved(config, key))

    def is_wanted(key: str) -> bool:
        if key.startswith("cluster.") and key.count(".") == 1 and key not in _CLUSTER_KEYS:
            return True  # misspelt, perhaps one of these keys
        return _is_among(key, keys)

    values: dict[str, Any] = resolve_to_plain(open_schema(), "", [])
    for key, value in resolve_to_plain(config, "", problems, is_wanted).items():
        values[key] = {**values[key], **value} if isinstance(values[key], dict) else value
    values["task"] = {**values["task"], **_NO_TASK}
    return values


def contact_words(words: Sequence[str], cluster: str) -> tuple[str, ...]:
    """Return those of a launch's words by which a verb reaches the same hosts.

    Task and environment of the launch are not among them.
    """
    own_groups = {option.name for option in dataclasses.fields(RunnerConfig)} | {"hydra"}
    keys = {*CONTACT_KEYS, *_IF_RESOLVED, "cluster.python", "rerun"} - {"run_id"}

    def is_wanted(key: str) -> bool:
        is_known = re.split(r"[./]", key)[0] in own_groups
        return key != "cluster" and (_is_among(key, keys) or not is_known)

    kept = [word for word in words if is_wanted(override_key(word))]
    chosen = chosen_cluster(words)
    several = f"[{cluster.replace('+', ',')}]" if "+" in cluster else cluster
    repeats_record = any(override_key(word) == "rerun" for word in kept)
    flags = () if repeats_record and not chosen else ("--cluster", chosen or several)
    return (*flags, *kept)


def _is_among(key: str, keys: Collection[str]) -> bool:
    """Return whether a key is one of these, leads to one or stands below one."""
    leads_to_one = any(f"{wanted}.".startswith(f"{key}.") for wanted in keys)
    is_below_one = any(f"{key}.".startswith(f"{wanted}.") for wanted in keys)
    return (leads_to_one or is_below_one) and not _NODE_ENV.fullmatch(key)


def _can_be_resolved(config: DictConfig, key: str) -> bool:
    problems: list[Problem] = []
    try:
        resolve_to_plain(OmegaConf.select(config, key), key, problems)
    except OmegaConfBaseException:
        return False
    return not problems
