"""Layers: the files and words that a configuration was composed of; the last one wins."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hydra.core.global_hydra import GlobalHydra
from hydra.types import RunMode
from omegaconf.errors import OmegaConfBaseException

from runner.config import rerun, words
from runner.config.kinds import Problems, legal_values, unknown_key
from runner.config.refusals import as_config, plain_values, unresolved_problem
from runner.config.source import ConfigFiles, KeyPath, display_path, one_line, read
from runner.core.errors import ConfigError
from runner.core.results import Origin, Setting
from runner.core.spec import GROUPS, section_of, written_default


@dataclass(frozen=True)
class Layer:
    place: str  # a file, or a word
    content: Any  # from the top of the configuration
    lines: Mapping[KeyPath, int] = field(default_factory=dict)
    word: str = ""


@dataclass(frozen=True)
class Composed:
    """A configuration, and what it was composed of."""

    tree: dict[str, Any]  # plain data, with its interpolations
    primary: str
    hydra_words: list[str]
    typed: Sequence[str]
    cluster: str  # the name of its file, as that of the task
    task: str
    files: ConfigFiles
    record: rerun.RecordedRun | None = None

    @functools.cached_property
    def layers(self) -> list[Layer]:
        """Every source of values; the last one wins."""
        layers = []
        if self.record:
            file = self.record.config_file
            layers.append(Layer(display_path(file), self.record.content, read(file).lines))
        loader = GlobalHydra.instance().config_loader()
        chosen = loader.compute_defaults_list(self.primary, self.hydra_words, RunMode.RUN)
        for default in chosen.defaults:
            package = tuple(filter(None, (default.package or "").split(".")))
            yaml_file = self.files.loaded.get(str(default.config_path).removesuffix(".yaml"))
            if yaml_file and package[:1] != ("hydra",):
                content = {**yaml_file.content}
                content.pop("defaults", None)
                lines = {(*package, *keys): line for keys, line in yaml_file.lines.items()}
                layers.append(Layer(display_path(yaml_file.path), _nest(package, content), lines))
        for word in self.typed:
            key = words.key_of(word)
            if key not in GROUPS:
                content = _nest(words.path_of(key), word.partition("=")[2])
                layers.append(Layer(f"command line: {word}", content, word=word))
        return layers

    def place_of(self, key: str) -> str:
        """Return `FILE:LINE: KEY` for the file that sets a key, or the key alone."""
        path = words.path_of(key)
        for layer in reversed(self.layers):
            if path in layer.lines:
                return f"{layer.place}:{layer.lines[path]}: {key}"
            if layer.word and f"{key}.".startswith(f"{words.key_of(layer.word)}."):
                break
        return key

    def origins(self, key: str) -> list[Origin]:
        """Return where a value comes from, or every value below a key.

        Raises:
            ConfigError: There is no such key.
        """
        tree = {**self.tree, "run_id": self.tree.get("run_id") or "RUN_ID"}
        config = as_config(tree)
        path, value = locate(tree, key)
        return [_origin(self.layers, leaf, tree, config) for leaf in _leaves(value, path)]


def _nest(names: Sequence[str], value: Any) -> Any:
    for name in reversed(names):
        value = {name: value}
    return value


def _below(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def locate(tree: Any, key: str) -> tuple[KeyPath, Any]:
    """Return the path of a key, whose parts may contain dots, and what stands there.

    Raises:
        ConfigError: There is no such key.
    """
    path: KeyPath = ()
    parts = key.split(".") if key else []
    while parts:
        below = _below(tree)
        names = (".".join(parts[:count]) for count in range(len(parts), 0, -1))
        name = next((each for each in names if each in below), None)
        if name is None:
            raise ConfigError([unknown_key(".".join(path), parts[0], list(below))])
        path = (*path, name)
        parts = parts[name.count(".") + 1 :]
        tree = below[name]
    return path, tree


def _leaves(value: Any, path: KeyPath) -> Iterator[KeyPath]:
    if isinstance(value, Mapping) and value:
        for name, below in value.items():
            yield from _leaves(below, (*path, name))
    else:
        yield path


def _origin(layers: Sequence[Layer], path: KeyPath, tree: Mapping[str, Any], node: Any) -> Origin:
    key = ".".join(path)
    settings = []
    for layer in reversed(layers):
        found: Any = layer.content
        for name in path:
            found = _below(found).get(name, ...)
        if found is not ...:
            # Its line, or that of the nearest key above it.
            lines = [layer.lines.get(path[:depth], 0) for depth in range(len(path), 0, -1)]
            line = next(filter(None, lines), 0)
            place = f"{layer.place}:{line}" if line else layer.place
            settings.append(Setting(place, one_line(found)))
    option = words.option_of(key)
    meaning = ""
    if option is not None:
        meaning = f"{option.metadata['help']} ({legal_values(option)})"
        if section_of(option) is None:
            default = words.plain(written_default(option))
            settings.append(Setting("default", one_line(default)))
    problems = Problems()
    value: Any = tree
    try:
        for name in path:
            value = _below(value)[name]
            node = node[name]
        node = words.plain(plain_values(node, key, problems))
    except OmegaConfBaseException as error:
        problems.append(unresolved_problem(key, error))
    written = one_line(value)
    if problems:
        return Origin(key, written, "", tuple(settings), problems[0].message, meaning)
    resolved = one_line(_masked(tree, node))
    written = "" if resolved == written else written
    return Origin(key, resolved, written, tuple(settings), "", meaning)


def _masked(tree: Mapping[str, Any], value: Any) -> Any:
    """Return a value without the texts of secrets that are in this shell's environment."""
    if isinstance(value, Mapping):
        return {name: _masked(tree, item) for name, item in value.items()}
    if isinstance(value, list):
        return [_masked(tree, item) for item in value]
    names = tree["cluster"].get("secrets") or []
    for name in [names] if isinstance(names, str) else names:
        secret = os.environ.get(str(name))
        if secret and isinstance(value, str):
            value = value.replace(secret, "***")
    return value
