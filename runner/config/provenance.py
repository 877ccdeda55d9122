"""Provenance of values: the place that sets each one, and the places it overrides."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import yaml
from hydra.core.default_element import ResultDefault
from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from runner.config.error_messages import resolve_to_plain, unresolved_problem
from runner.config.nodes import NODE_KEYS, expand_range
from runner.config.overrides import meaning_of
from runner.config.schema import GROUPS
from runner.config.search_path import KeyPath, Sources, display_path, key_lines_of
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
DEFAULT = "default"
"""The place of a value that nobody set."""

RUN_ID_EXAMPLE = "MMDD-HHMM-TASK-xxxx"


@dataclass(frozen=True)
class Layer:
    """One source of values; later layers win over earlier ones."""

    name: str  # a file, an override, or "default"
    content: Any  # from the top of the configuration
    lines: Mapping[KeyPath, int] = field(default_factory=dict)
    override_path: KeyPath = ()
    is_deletion: bool = False

    def setting(self, key_path: KeyPath) -> Setting | None:
        """Return the setting of a key in this layer, if there is one."""
        place = self.place(key_path)
        if place is None:
            return None
        value = "removed"
        if not self.is_deletion:
            value = _one_line_yaml(_value_at(self.content, key_path))
        return Setting(place, ".".join(key_path), value)

    def place(self, key_path: KeyPath) -> str | None:
        """Return where this layer sets or removes a key, if it does."""
        if self.is_deletion:
            is_below = key_path[: len(self.override_path)] == self.override_path
            return self.name if is_below else None
        try:
            _value_at(self.content, key_path)
        except KeyError:
            return None
        lines = (self.lines.get(key_path[:depth]) for depth in range(len(key_path), 0, -1))
        line = next(filter(None, lines), None)
        return f"{self.name}:{line}" if line else self.name


def collect_layers(sources: Sources) -> list[Layer]:
    """Return every source of values; the last one wins."""
    layers = [_config_layer(entry, sources) for entry in sources.defaults if entry.config_path]
    for word, override in sources.overrides:
        if override.key_or_group not in GROUPS or isinstance(override.value(), dict):
            layers.append(_override_layer(word, override))
    return list(filter(None, layers))


def _config_layer(default: ResultDefault, sources: Sources) -> Layer | None:
    path = str(default.config_path).removesuffix(".yaml")
    package = tuple(filter(None, (default.package or "").split(".")))
    if package[:1] == ("hydra",) or path.startswith("hydra/"):
        return None
    file, text = sources.files.get(path, (None, ""))
    is_stored = file is None or file == sources.records.get(path)
    node = _stored_node(sources.stored, path) if is_stored else OmegaConf.create(text)
    content = _with_text_keys(OmegaConf.to_container(node, resolve=False))
    if isinstance(content, dict):
        content.pop("defaults", None)
    if file is None:
        return Layer(DEFAULT, _nest(package, content))
    lines = {(*package, *key_path): line for key_path, line in key_lines_of(text).items()}
    return Layer(display_path(file), _nest(package, content), lines)


def _stored_node(stored: Any, path: str) -> Any:
    """Return a node of Hydra's store; `hydra_settings.register` put no empty ones there."""
    try:
        for name in f"{path}.yaml".split("/"):
            stored = stored[name]
    except KeyError:
        return OmegaConf.create()
    return stored.node


def _override_layer(word: str, override: Override) -> Layer:
    key_path = tuple(override.key_or_group.split("."))
    name = f"command line: {word}"
    if override.is_delete():
        return Layer(name, {}, override_path=key_path, is_deletion=True)
    return Layer(name, _nest(key_path, _with_text_keys(override.value())), override_path=key_path)


def _nest(key_path: KeyPath, value: Any) -> Any:
    for part in reversed(key_path):
        value = {part: value}
    return value


def _with_text_keys(value: Any) -> Any:
    """Return plain data with all keys as text."""
    if isinstance(value, Mapping):
        return {str(key): _with_text_keys(item) for key, item in value.items()}
    return [_with_text_keys(item) for item in value] if isinstance(value, list) else value


def _value_at(tree: Any, key_path: KeyPath) -> Any:
    """Return the value at a path, or raise KeyError."""
    for part in key_path:
        if isinstance(tree, list):
            tree = dict(enumerate(tree))[int(part) if part.isdecimal() else -1]
        elif isinstance(tree, Mapping):
            tree = tree[part]
        else:
            raise KeyError(part)
    return tree


def _one_line_yaml(value: Any) -> str:
    """Return a value as YAML of one line."""
    dumped: str = yaml.safe_dump(
        value, default_flow_style=True, width=10**6, allow_unicode=True, sort_keys=False
    )
    return dumped.removesuffix("\n").removesuffix("\n...")


def _leaf_paths(tree: Any, key_path: KeyPath) -> Iterator[KeyPath]:
    """Yield the path of every value below a path."""
    value = _value_at(tree, key_path)
    if isinstance(value, Mapping) and value:
        for key in value:
            yield from _leaf_paths(tree, (*key_path, key))
    else:
        yield key_path


def _locate(tree: Any, key: str) -> KeyPath:
    """Return the path of a key, or raise ConfigError; parts of it may contain dots."""
    key_path: list[str] = []
    parts = key.split(".") if key else []
    while parts:
        value = _value_at(tree, tuple(key_path))
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
        value = _one_line_yaml(_value_at(tree, key_path))
        return Problem(f"{where}.{name}", f"there is nothing below {where}: {value}")
    if key_path == NODES_PATH:
        message = f"there is no node {name}; the nodes are {', '.join(legal)}"
        return Problem(f"{where}.{name}", message, suggest(name, legal, f"{where}."))
    all_keys = [".".join(leaf) for leaf in _leaf_paths(tree, ())]
    same_name = [key for key in all_keys if key.rpartition(".")[2] == name]
    problem = unknown_key(where, name, legal)
    hint = f"did you mean {same_name[0]}?" if same_name and not problem.hint else problem.hint
    return Problem(problem.subject, problem.message, hint)


class ProvenanceTracer:
    """Finds the origin of values in one composed configuration."""

    def __init__(self, config: DictConfig, sources: Sequence[Layer]) -> None:
        """Take a configuration without Hydra's section, and its layers."""
        self._tree = _with_text_keys(OmegaConf.to_container(config, resolve=False))
        self._config = config
        self._layers = sources
        if self._tree.get("run_id", "") is None:
            config.run_id = RUN_ID_EXAMPLE
        secret_names = self._written_at((*NODES_PATH[:1], "secrets"))
        names = secret_names if isinstance(secret_names, list) else [secret_names]
        values = [os.environ.get(name) for name in names if isinstance(name, str)]
        self._secret_values = list(filter(None, values))
        self._entries = self._entries_by_node()

    def origins(self, key: str) -> list[Origin]:
        """Return the origin of a key, or of every key below it."""
        return [replace(each, meaning=meaning_of(each.key)) for each in self._origins(key)]

    def _origins(self, key: str) -> list[Origin]:
        for name in self._entries:
            node_key = f"cluster.nodes.{name}"
            if f"{key}.".startswith(f"{node_key}."):
                return list(self._node_origins(name, key[len(node_key) + 1 :]))
        try:
            paths = list(_leaf_paths(self._tree, _locate(self._tree, key)))
        except ConfigError:
            for layer in reversed(self._layers):
                removed = ".".join(layer.override_path)
                if layer.is_deletion and f"{key}.".startswith(f"{removed}."):
                    word = layer.name.removeprefix("command line: ")
                    raise ConfigError([Problem(key, f"{word} removed it")]) from None
            raise
        return [self._origin(".".join(path), path, self._settings(path)) for path in paths]

    def _settings(self, key_path: KeyPath) -> list[Setting]:
        """Return all settings of a key, the one that wins first."""
        settings = [layer.setting(key_path) for layer in reversed(self._layers)]
        return list(dict.fromkeys(filter(None, settings)))

    def _origin(self, key: str, key_path: KeyPath, settings: Sequence[Setting]) -> Origin:
        """Return the origin of `key`, whose value stands at `key_path`."""
        written = _one_line_yaml(_value_at(self._tree, key_path))
        resolved, problems = _resolve(self._config, key_path)
        if problems:
            return Origin(key, written, "", tuple(settings), problems[0].message)
        value = _one_line_yaml(self._mask_secrets(resolved))
        return Origin(key, value, written if written != value else "", tuple(settings))

    def _written_at(self, key_path: KeyPath) -> Any:
        """Return the unresolved value at a path, or None."""
        try:
            return _value_at(self._tree, key_path)
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
            tails: list[KeyPath] = [(node_key, n) for n in names if variable in ("", n)]
            for tail in tails or [(node_key,)]:
                yield self._node_key_origin(name, entries, tail)

    def _entry_body(self, key_path: KeyPath) -> Mapping[str, Any]:
        body = self._written_at(key_path)
        return body if isinstance(body, Mapping) else {}

    def _env_names(self, entries: Sequence[KeyPath]) -> list[str]:
        envs = [self._entry_body((*entry, "env")) for entry in entries]
        return list(dict.fromkeys(name for env in envs for name in env))

    def _node_key_origin(self, name: str, entries: Sequence[KeyPath], tail: KeyPath) -> Origin:
        key_paths = [(*entry, *tail) for entry in entries if self._is_set((*entry, *tail))]
        own_path = (*NODES_PATH, name, *tail)
        full_key = ".".join(own_path)
        # An override of a node wins over every entry, including later ones.
        overridden = [layer.override_path for layer in self._layers]
        overridden = [path for path in overridden if path[:3] == own_path[:3]]
        if own_path in key_paths and any(own_path[: len(path)] == path for path in overridden):
            key_paths.remove(own_path)
            key_paths.append(own_path)
        settings = [setting for path in reversed(key_paths) for setting in self._settings(path)]
        cluster_path = CLUSTER_DEFAULTS.get(tail[0])
        cluster_settings = self._settings(cluster_path) if cluster_path else []
        may_be_null = tail[0] not in NULL_MEANS_UNSET
        if key_paths and (may_be_null or _value_at(self._tree, key_paths[-1]) is not None):
            return self._origin(full_key, key_paths[-1], [*settings, *cluster_settings])
        if cluster_path:
            return self._origin(full_key, cluster_path, [*cluster_settings, *settings])
        defaults: dict[KeyPath, Any] = {("host",): name, ("env",): {}}
        value = defaults.get(tail)
        default = Setting(DEFAULT, full_key, _one_line_yaml(value))
        return Origin(full_key, _one_line_yaml(value), "", (default, *settings))

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
        for part in key_path:  # it is text; keys may be numbers, and indices are
            keys = node if isinstance(node, DictConfig) else range(len(node))
            node = node[next(key for key in keys if str(key) == part)]
    except OmegaConfBaseException as error:
        return None, [unresolved_problem(".".join(key_path), error)]
    return resolve_to_plain(node, ".".join(key_path), problems), problems


def as_yaml(config: DictConfig, key: str, *, resolve: bool) -> str:
    """Return a configuration without Hydra's section, or the part below a key, as YAML."""
    tree = _with_text_keys(OmegaConf.to_container(config, resolve=False))
    key_path = _locate(tree, key)
    if resolve:
        if tree.get("run_id", "") is None:
            config.run_id = RUN_ID_EXAMPLE
        value, problems = _resolve(config, key_path)
        if problems:
            raise ConfigError(problems)
    else:
        value = _value_at(tree, key_path)
    if not isinstance(value, (dict, list)):
        return _one_line_yaml(value) + "\n"
    if resolve:
        return str(yaml.safe_dump(value, sort_keys=False, allow_unicode=True))
    # OmegaConf's own, because it quotes what only OmegaConf takes for a number, such as 1e3.
    return OmegaConf.to_yaml(OmegaConf.create(value))
