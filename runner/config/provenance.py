"""Where every value comes from: the place that sets it, and the places it overrides."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from runner.config.error_messages import plain, unresolved
from runner.config.layers import Layer, Setting, Way, at, leaves, normal, text
from runner.config.nodes import NODE_KEYS, expand
from runner.config.validation import nearest, stranger
from runner.core.errors import ConfigError, Problem

NODES: Way = ("cluster", "nodes")
OF_THE_CLUSTER: Mapping[str, Way] = {
    "gpus": ("cluster", "gpus_per_node"),
    "nproc_per_node": ("cluster", "nproc_per_node"),
    "transport": ("cluster", "transport"),
    "user": ("cluster", "ssh", "user"),
    "port": ("cluster", "ssh", "port"),
}
"""What holds for a node that says nothing itself."""
NULL_IS_NOTHING = ("host", "user", "port", "transport")
"""The keys of a node for which null means the same as being left out."""
RUN_ID = "MMDD-HHMM-TASK-xxxx"


@dataclass(frozen=True)
class Origin:
    """One value, and where it comes from.

    Attributes:
        key: The full key.
        value: Its value as YAML, interpolations resolved, what is secret as ***.
        written: The same as it is written, "" if that is no different.
        settings: All places that set it; the first one won.
        problem: Why it cannot be resolved, or "".
    """

    key: str
    value: str
    written: str
    settings: tuple[Setting, ...]
    problem: str = ""


def locate(tree: Any, key: str) -> Way:
    """Return the path of a key; parts of it may have dots themselves.

    Raises:
        ConfigError: There is no such key.
    """
    way: list[str] = []
    parts = key.split(".") if key else []
    while parts:
        here = at(tree, tuple(way))
        legal = list(here) if isinstance(here, Mapping) else []
        legal += map(str, range(len(here))) if isinstance(here, list) else []
        sizes = range(1, len(parts) + 1)
        size = next((n for n in sizes if ".".join(parts[:n]) in legal), None)
        if size is None:
            raise ConfigError([_unknown(tree, tuple(way), parts[0], legal)])
        way.append(".".join(parts[:size]))
        parts = parts[size:]
    return tuple(way)


def _unknown(tree: Any, way: Way, name: str, legal: Sequence[str]) -> Problem:
    where = ".".join(way)
    if not legal:
        return Problem(f"{where}.{name}", f"there is nothing below {where}: {text(at(tree, way))}")
    if way == NODES:
        what = f"there is no node {name}; the nodes are {', '.join(legal)}"
        return Problem(f"{where}.{name}", what, nearest(name, legal, f"{where}."))
    known = [".".join(each) for each in leaves(tree, ())]
    same = [key for key in known if key.rpartition(".")[2] == name]
    problem = stranger(where, name, legal)
    if not same or problem.hint:
        return problem
    return Problem(problem.where, problem.what, f"did you mean {same[0]}?")


class Tracer:
    """Answers for one composed configuration."""

    def __init__(self, config: DictConfig, sources: Sequence[Layer]) -> None:
        """Take a configuration without Hydra's own part, and what it was made of."""
        self._tree = normal(OmegaConf.to_container(config, resolve=False))
        self._config = config
        self._layers = sources
        if self._tree.get("run_id", "") is None:
            config.run_id = RUN_ID
        named = self._at((*NODES[:1], "secrets"))
        names = named if isinstance(named, list) else [named]
        self._hidden = [os.environ[n] for n in names if isinstance(n, str) and os.environ.get(n)]
        self._entries = self._members()

    def origins(self, key: str) -> list[Origin]:
        """Return where a key, or everything below it, comes from.

        Raises:
            ConfigError: There is no such key.
        """
        for name in self._entries:
            full = ".".join((*NODES, name))
            if f"{key}.".startswith(f"{full}."):
                return list(self._of_node(name, key[len(full) + 1 :]))
        try:
            found = leaves(self._tree, locate(self._tree, key))
        except ConfigError as error:
            raise self._taken_out(key) or error from None
        return [self._origin(".".join(way), way, self._settings(way)) for way in found]

    def _taken_out(self, key: str) -> ConfigError | None:
        """Return a better message where the command line took the key away."""
        words = [
            layer.name.removeprefix("command line: ")
            for layer in self._layers
            if layer.deletes and f"{key}.".startswith(f"{'.'.join(layer.word)}.")
        ]
        what = f"{words[-1]} took it out" if words else ""
        return ConfigError([Problem(key, what)]) if what else None

    def _settings(self, way: Way) -> list[Setting]:
        """Return all that set a key, the one that wins first."""
        found = [layer.setting(way) for layer in reversed(self._layers)]
        return list(dict.fromkeys(filter(None, found)))

    def _origin(self, key: str, way: Way, settings: Sequence[Setting]) -> Origin:
        """Return the origin of `key`, whose value stands at `way`."""
        written = text(at(self._tree, way))
        value, problem = self._resolved(way)
        return Origin(
            key=key,
            value=value if not problem else written,
            written=written if not problem and written != value else "",
            settings=tuple(settings),
            problem=problem,
        )

    def _resolved(self, way: Way) -> tuple[str, str]:
        """Return the value at a path as YAML, or why there is none."""
        value, problems = _resolved(self._config, way)
        return ("", problems[0].what) if problems else (text(self._masked(value)), "")

    def _at(self, way: Way) -> Any:
        """Return what is written there, or None."""
        try:
            return at(self._tree, way)
        except KeyError:
            return None

    def _masked(self, value: Any) -> Any:
        if isinstance(value, str):
            for secret in self._hidden:
                value = value.replace(secret, "***")
        elif isinstance(value, Mapping):
            return {key: self._masked(item) for key, item in value.items()}
        elif isinstance(value, list):
            return [self._masked(item) for item in value]
        return value

    def _members(self) -> dict[str, list[str]]:
        """Return the entries of `cluster.nodes` that speak of a node, by its name."""
        found: dict[str, list[str]] = {}
        nodes = self._at(NODES)
        for entry in nodes if isinstance(nodes, Mapping) else ():
            try:
                names = expand(entry)
            except ValueError:
                continue
            for name in names:
                found.setdefault(name, []).append(entry)
        return found

    def _of_node(self, name: str, rest: str) -> Iterator[Origin]:
        """Yield what holds for one node: ranges, later entries and the cluster's defaults count."""
        key, _, variable = rest.partition(".")
        entries = [(*NODES, entry) for entry in self._entries[name]]
        own = [each for way in entries for each in self._body(way)]
        legal = list(dict.fromkeys([*NODE_KEYS, *own]))
        where = ".".join((*NODES, name))
        if key and key not in legal:
            raise ConfigError([stranger(where, key, NODE_KEYS)])
        for each in [key] if key else legal:
            names = self._variables(entries) if each == "env" else []
            if variable and variable not in names:
                raise ConfigError([stranger(f"{where}.{each}", variable, names or ["none"])])
            tails: list[Way] = [(each, one) for one in names if variable in ("", one)]
            for tail in tails or [(each,)]:
                yield self._of_node_key(name, entries, tail)

    def _body(self, way: Way) -> Mapping[str, Any]:
        body = self._at(way)
        return body if isinstance(body, Mapping) else {}

    def _variables(self, entries: Sequence[Way]) -> list[str]:
        found: dict[str, None] = {}
        for way in entries:
            env = self._body(way).get("env")
            found |= dict.fromkeys(env if isinstance(env, Mapping) else ())
        return list(found)

    def _of_node_key(self, name: str, entries: Sequence[Way], tail: Way) -> Origin:
        ways = [(*way, *tail) for way in entries if self._holds((*way, *tail))]
        full = ".".join((*NODES, name, *tail))
        # What the command line says of a node wins over every entry, also over later ones.
        own = (*NODES, name, *tail)
        named = [layer.word for layer in self._layers if layer.word[:3] == own[:3]]
        if own in ways and any(own[: len(word)] == word for word in named):
            ways.remove(own)
            ways.append(own)
        settings = [each for way in reversed(ways) for each in self._settings(way)]
        spare = OF_THE_CLUSTER.get(tail[0])
        lower = self._settings(spare) if spare else []
        void = ways and tail[0] in NULL_IS_NOTHING and at(self._tree, ways[-1]) is None
        if ways and not void:
            return self._origin(full, ways[-1], [*settings, *lower])
        if spare:
            return self._origin(full, spare, [*lower, *settings])
        defaults: dict[Way, Any] = {("host",): name, ("env",): {}}
        value = defaults.get(tail)
        default = Setting("default", full, text(value))
        return Origin(full, text(value), "", (default, *settings))

    def _holds(self, way: Way) -> bool:
        """Return whether an entry has this key, and it counts."""
        missing = object()
        value = self._body(way[:-1]).get(way[-1], missing)
        nothing = way[-1] == "transport" or way[-2] == "env"
        return value is not missing and not (value is None and nothing)


def _resolved(config: DictConfig, way: Way) -> tuple[Any, list[Problem]]:
    """Return the value at a path as plain data, and what of it cannot be resolved."""
    problems: list[Problem] = []
    node: Any = config
    try:
        for part in way:
            node = node[_own_key(node, part)]
    except OmegaConfBaseException as error:
        return None, [unresolved(".".join(way), error)]
    return plain(node, ".".join(way), problems), problems


def _own_key(node: Any, part: str) -> Any:
    """Return a part of a path as the key it is: keys may be numbers, indices are."""
    if isinstance(node, DictConfig):
        return next(key for key in node if str(key) == part)
    return int(part)


def as_yaml(config: DictConfig, key: str, *, resolve: bool) -> str:
    """Return a configuration without Hydra's own part, or what is below a key, as YAML.

    Raises:
        ConfigError: There is no such key, or something cannot be resolved.
    """
    tree = normal(OmegaConf.to_container(config, resolve=False))
    way = locate(tree, key)
    if resolve:
        if tree.get("run_id", "") is None:
            config.run_id = RUN_ID
        value, problems = _resolved(config, way)
        if problems:
            raise ConfigError(problems)
    else:
        value = at(tree, way)
    if not isinstance(value, (dict, list)):
        return text(value) + "\n"
    # OmegaConf's own, because it quotes what only OmegaConf takes for a number, such as 1e3.
    return _dumped(value) if resolve else OmegaConf.to_yaml(OmegaConf.create(value))


def _dumped(value: Any) -> str:
    dumped: str = yaml.safe_dump(value, sort_keys=False, allow_unicode=True)
    return dumped
