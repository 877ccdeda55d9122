"""Provenance of values: the place that sets each one, and the places it overrides."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from runner.config.error_messages import resolve_to_plain, unresolved_problem
from runner.config.layers import KeyPath, Layer, leaf_paths, one_line_yaml, value_at, with_text_keys
from runner.config.nodes import NODE_KEYS, expand_range
from runner.config.validation import suggest, unknown_key
from runner.core.errors import ConfigError, Problem
from runner.core.model.results import Origin, Setting

NODES_PATH: KeyPath = ("cluster", "nodes")
CLUSTER_DEFAULTS: Mapping[str, KeyPath] = {
    "gpus": ("cluster", "gpus_per_node"),
    "nproc_per_node": ("cluster", "nproc_per_node"),
    "transport": ("cluster", "transport"),
    "user": ("cluster", "ssh", "user"),
    "port": ("cluster", "ssh", "port"),
}
"""The keys of the cluster that are the defaults of a node's keys."""
NULL_MEANS_UNSET = ("host", "user", "port", "transport")
"""The keys of a node for which null means the same as being left out."""
RUN_ID_EXAMPLE = "MMDD-HHMM-TASK-xxxx"


def locate(tree: Any, key: str) -> KeyPath:
    """Return the path of a key; parts of it may contain dots.

    Raises:
        ConfigError: There is no such key.
    """
    key_path: list[str] = []
    parts = key.split(".") if key else []
    while parts:
        value = value_at(tree, tuple(key_path))
        legal = list(value) if isinstance(value, Mapping) else []
        legal += map(str, range(len(value))) if isinstance(value, list) else []
        sizes = range(1, len(parts) + 1)
        size = next((n for n in sizes if ".".join(parts[:n]) in legal), None)
        if size is None:
            raise ConfigError([_unknown_path(tree, tuple(key_path), parts[0], legal)])
        key_path.append(".".join(parts[:size]))
        parts = parts[size:]
    return tuple(key_path)


def _unknown_path(tree: Any, key_path: KeyPath, name: str, legal: Sequence[str]) -> Problem:
    where = ".".join(key_path)
    if not legal:
        return Problem(
            f"{where}.{name}",
            f"there is nothing below {where}: {one_line_yaml(value_at(tree, key_path))}",
        )
    if key_path == NODES_PATH:
        message = f"there is no node {name}; the nodes are {', '.join(legal)}"
        return Problem(f"{where}.{name}", message, suggest(name, legal, f"{where}."))
    all_keys = [".".join(leaf) for leaf in leaf_paths(tree, ())]
    same_name = [key for key in all_keys if key.rpartition(".")[2] == name]
    problem = unknown_key(where, name, legal)
    if not same_name or problem.hint:
        return problem
    return Problem(problem.subject, problem.message, f"did you mean {same_name[0]}?")


class ProvenanceTracer:
    """Finds the origin of values in one composed configuration."""

    def __init__(self, config: DictConfig, sources: Sequence[Layer]) -> None:
        """Take a configuration without Hydra's section, and its layers."""
        self._tree = with_text_keys(OmegaConf.to_container(config, resolve=False))
        self._config = config
        self._layers = sources
        if self._tree.get("run_id", "") is None:
            config.run_id = RUN_ID_EXAMPLE
        secret_names = self._written_at((*NODES_PATH[:1], "secrets"))
        names = secret_names if isinstance(secret_names, list) else [secret_names]
        self._secret_values = [
            os.environ[n] for n in names if isinstance(n, str) and os.environ.get(n)
        ]
        self._entries = self._entries_by_node()

    def origins(self, key: str) -> list[Origin]:
        """Return the origin of a key, or of every key below it.

        Raises:
            ConfigError: There is no such key.
        """
        for name in self._entries:
            node_key = ".".join((*NODES_PATH, name))
            if f"{key}.".startswith(f"{node_key}."):
                return list(self._node_origins(name, key[len(node_key) + 1 :]))
        try:
            leaf_key_paths = leaf_paths(self._tree, locate(self._tree, key))
        except ConfigError as error:
            raise self._deletion_error(key) or error from None
        return [
            self._origin(".".join(key_path), key_path, self._settings(key_path))
            for key_path in leaf_key_paths
        ]

    def _deletion_error(self, key: str) -> ConfigError | None:
        """Return the error of a key that an override removed, if one did."""
        words = [
            layer.name.removeprefix("command line: ")
            for layer in self._layers
            if layer.is_deletion and f"{key}.".startswith(f"{'.'.join(layer.override_path)}.")
        ]
        message = f"{words[-1]} removed it" if words else ""
        return ConfigError([Problem(key, message)]) if message else None

    def _settings(self, key_path: KeyPath) -> list[Setting]:
        """Return all settings of a key, the one that wins first."""
        settings = [layer.setting(key_path) for layer in reversed(self._layers)]
        return list(dict.fromkeys(filter(None, settings)))

    def _origin(self, key: str, key_path: KeyPath, settings: Sequence[Setting]) -> Origin:
        """Return the origin of `key`, whose value stands at `key_path`."""
        written = one_line_yaml(value_at(self._tree, key_path))
        value, problem = self._resolve(key_path)
        return Origin(
            key=key,
            value=value if not problem else written,
            written=written if not problem and written != value else "",
            settings=tuple(settings),
            problem=problem,
        )

    def _resolve(self, key_path: KeyPath) -> tuple[str, str]:
        """Return the value at a path as YAML, or "" and a problem."""
        value, problems = _resolve(self._config, key_path)
        return (
            ("", problems[0].message)
            if problems
            else (one_line_yaml(self._mask_secrets(value)), "")
        )

    def _written_at(self, key_path: KeyPath) -> Any:
        """Return the unresolved value at a path, or None."""
        try:
            return value_at(self._tree, key_path)
        except KeyError:
            return None

    def _mask_secrets(self, value: Any) -> Any:
        if isinstance(value, str):
            for secret in self._secret_values:
                value = value.replace(secret, "***")
        elif isinstance(value, Mapping):
            return {key: self._mask_secrets(item) for key, item in value.items()}
        elif isinstance(value, list):
            return [self._mask_secrets(item) for item in value]
        return value

    def _entries_by_node(self) -> dict[str, list[str]]:
        """Return the entries of `cluster.nodes` for each node."""
        entries_by_name: dict[str, list[str]] = {}
        nodes = self._written_at(NODES_PATH)
        for entry in nodes if isinstance(nodes, Mapping) else ():
            try:
                names = expand_range(entry)
            except ValueError:
                continue
            for name in names:
                entries_by_name.setdefault(name, []).append(entry)
        return entries_by_name

    def _node_origins(self, name: str, subkey: str) -> Iterator[Origin]:
        """Yield the origins for one node, from its entries, ranges and the cluster's defaults."""
        key, _, variable = subkey.partition(".")
        entries = [(*NODES_PATH, entry) for entry in self._entries[name]]
        own_keys = [node_key for entry_path in entries for node_key in self._entry_body(entry_path)]
        legal = list(dict.fromkeys([*NODE_KEYS, *own_keys]))
        where = ".".join((*NODES_PATH, name))
        if key and key not in legal:
            raise ConfigError([unknown_key(where, key, NODE_KEYS)])
        for node_key in [key] if key else legal:
            names = self._env_names(entries) if node_key == "env" else []
            if variable and variable not in names:
                raise ConfigError([unknown_key(f"{where}.{node_key}", variable, names or ["none"])])
            tails: list[KeyPath] = [
                (node_key, env_name) for env_name in names if variable in ("", env_name)
            ]
            for tail in tails or [(node_key,)]:
                yield self._node_key_origin(name, entries, tail)

    def _entry_body(self, key_path: KeyPath) -> Mapping[str, Any]:
        body = self._written_at(key_path)
        return body if isinstance(body, Mapping) else {}

    def _env_names(self, entries: Sequence[KeyPath]) -> list[str]:
        env_names: dict[str, None] = {}
        for entry_path in entries:
            env = self._entry_body(entry_path).get("env")
            env_names |= dict.fromkeys(env if isinstance(env, Mapping) else ())
        return list(env_names)

    def _node_key_origin(self, name: str, entries: Sequence[KeyPath], tail: KeyPath) -> Origin:
        key_paths = [(*key_path, *tail) for key_path in entries if self._is_set((*key_path, *tail))]
        full_key = ".".join((*NODES_PATH, name, *tail))
        # An override of a node wins over every entry, including later ones.
        own_path = (*NODES_PATH, name, *tail)
        override_paths = [
            layer.override_path for layer in self._layers if layer.override_path[:3] == own_path[:3]
        ]
        if own_path in key_paths and any(
            own_path[: len(override_path)] == override_path for override_path in override_paths
        ):
            key_paths.remove(own_path)
            key_paths.append(own_path)
        settings = [
            setting for key_path in reversed(key_paths) for setting in self._settings(key_path)
        ]
        cluster_path = CLUSTER_DEFAULTS.get(tail[0])
        cluster_settings = self._settings(cluster_path) if cluster_path else []
        is_null = (
            key_paths
            and tail[0] in NULL_MEANS_UNSET
            and value_at(self._tree, key_paths[-1]) is None
        )
        if key_paths and not is_null:
            return self._origin(full_key, key_paths[-1], [*settings, *cluster_settings])
        if cluster_path:
            return self._origin(full_key, cluster_path, [*cluster_settings, *settings])
        defaults: dict[KeyPath, Any] = {("host",): name, ("env",): {}}
        value = defaults.get(tail)
        default = Setting("default", full_key, one_line_yaml(value))
        return Origin(full_key, one_line_yaml(value), "", (default, *settings))

    def _is_set(self, key_path: KeyPath) -> bool:
        """Return whether an entry sets this key."""
        missing = object()
        value = self._entry_body(key_path[:-1]).get(key_path[-1], missing)
        null_is_unset = key_path[-1] == "transport" or key_path[-2] == "env"
        return value is not missing and not (value is None and null_is_unset)


def _resolve(config: DictConfig, key_path: KeyPath) -> tuple[Any, list[Problem]]:
    """Return the value at a path as plain data, and the problems of resolving it."""
    problems: list[Problem] = []
    node: Any = config
    try:
        for part in key_path:
            node = node[_native_key(node, part)]
    except OmegaConfBaseException as error:
        return None, [unresolved_problem(".".join(key_path), error)]
    return resolve_to_plain(node, ".".join(key_path), problems), problems


def _native_key(node: Any, part: str) -> Any:
    """Return a part of a path as the key it stands for: keys may be numbers, indices are."""
    if isinstance(node, DictConfig):
        return next(key for key in node if str(key) == part)
    return int(part)


def as_yaml(config: DictConfig, key: str, *, resolve: bool) -> str:
    """Return a configuration without Hydra's section, or the part below a key, as YAML.

    Raises:
        ConfigError: There is no such key, or something cannot be resolved.
    """
    tree = with_text_keys(OmegaConf.to_container(config, resolve=False))
    key_path = locate(tree, key)
    if resolve:
        if tree.get("run_id", "") is None:
            config.run_id = RUN_ID_EXAMPLE
        value, problems = _resolve(config, key_path)
        if problems:
            raise ConfigError(problems)
    else:
        value = value_at(tree, key_path)
    if not isinstance(value, (dict, list)):
        return one_line_yaml(value) + "\n"
    # OmegaConf's own, because it quotes what only OmegaConf takes for a number, such as 1e3.
    return _dump(value) if resolve else OmegaConf.to_yaml(OmegaConf.create(value))


def _dump(value: Any) -> str:
    dumped: str = yaml.safe_dump(value, sort_keys=False, allow_unicode=True)
    return dumped
