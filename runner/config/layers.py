"""Layers: the files and words that a configuration was composed of; the last one wins."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hydra.core.global_hydra import GlobalHydra
from hydra.types import RunMode
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from runner.config import rerun, words
from runner.config.errors import unresolved_problem
from runner.config.kinds import Problems
from runner.config.source import KeyPath, YamlSource, display_path, read
from runner.core.spec import GROUPS

RECORD = "_rerun_"
"""The name of a record for Hydra; no file of a user has it."""


@dataclass(frozen=True)
class Layer:
    """One source of values; later layers win over earlier ones."""

    config: str  # its name for Hydra, "" for a word
    place: str  # a file, or a word
    content: Any  # from the top of the configuration
    lines: Mapping[KeyPath, int] = field(default_factory=dict)

    def line(self, keys: KeyPath) -> int:
        """Return the line of a key, or of the nearest key above it."""
        lines = (self.lines.get(keys[:depth], 0) for depth in range(len(keys), 0, -1))
        return next(filter(None, lines), 0)


@dataclass(frozen=True)
class Composed:
    """A configuration, and what it was composed of."""

    config: DictConfig
    primary: str
    hydra_words: list[str]
    typed: Sequence[str]
    choices: dict[str, Any]
    record: rerun.RecordedRun | None = None


def unresolved(config: Any) -> dict[str, Any]:
    """Return a configuration as plain data, with its interpolations."""
    return dict(words.plain(OmegaConf.to_container(config, resolve=False)))


def plain_values(
    node: Any,
    where: str,
    problems: Problems,
    is_wanted: Callable[[str], bool] = lambda _: True,
) -> Any:
    """Return a config as plain data, resolved; add what cannot be resolved to `problems`.

    Keys that are not wanted, by their full names, are neither resolved nor returned.
    """
    if isinstance(node, DictConfig):
        pairs = [(key, str(key)) for key in node]
    elif isinstance(node, ListConfig):
        pairs = [(index, str(index)) for index in range(len(node))]
    else:
        return node
    result: dict[str, Any] = {}
    for key, name in pairs:
        full_key = f"{where}.{name}" if where else name
        if not is_wanted(full_key):
            continue
        try:
            value = node[key]
        except OmegaConfBaseException as error:
            problem = unresolved_problem(full_key, error)
            if problem.message not in {earlier.message for earlier in problems}:
                problems.append(problem)
        else:
            result[name] = plain_values(value, full_key, problems, is_wanted)
    return result if isinstance(node, DictConfig) else list(result.values())


def layers_of(composed: Composed) -> list[Layer]:
    """Return every source of values of a configuration; the last one wins."""
    loader = GlobalHydra.instance().config_loader()
    given = (composed.primary, composed.hydra_words, RunMode.RUN)
    layers = []
    for default in loader.compute_defaults_list(*given).defaults:
        config = str(default.config_path).removesuffix(".yaml")
        package = tuple(filter(None, (default.package or "").split(".")))
        yaml_file = YamlSource.loaded.get(config)
        if yaml_file and package[:1] != ("hydra",):
            lines = {(*package, *keys): line for keys, line in yaml_file.lines.items()}
            content = {k: v for k, v in yaml_file.content.items() if k != "defaults"}
            content = _nest(package, content)
            layers.append(Layer(config, display_path(yaml_file.path), content, lines))
    if composed.record:
        file = composed.record.config_file
        lines = {} if composed.record.hosts else read(file).lines
        content = unresolved(composed.record.config)
        layers.insert(0, Layer(RECORD, display_path(file), content, lines))
    for word in composed.typed:
        key = words.key_of(word)
        if key not in GROUPS:
            content = _nest(key.split("."), word.partition("=")[2])
            layers.append(Layer("", f"command line: {word}", content))
    return layers


def _nest(keys: Sequence[str], value: Any) -> Any:
    for name in reversed(keys):
        value = {name: value}
    return value


def value_at(content: Any, path: KeyPath) -> tuple[Any] | None:
    """Return what a layer has at a path, None if it has nothing there."""
    for name in path:
        if isinstance(content, Mapping) and name in content:
            content = content[name]
        elif isinstance(content, list) and name.isdecimal() and int(name) < len(content):
            content = content[int(name)]
        else:
            return None
    return (content,)


def place_of(key: str, layers: Sequence[Layer]) -> str:
    """Return `FILE:LINE: KEY` for the file that sets a key, or the key alone."""
    keys = tuple(key.split("."))
    for layer in reversed(layers):
        if layer.config and keys in layer.lines:
            is_choice = layer.config.startswith("rendezvous/")  # users choose one, and edit none
            return key if is_choice else f"{layer.place}:{layer.lines[keys]}: {key}"
        word = layer.place.removeprefix("command line: ")
        if not layer.config and f"{key}.".startswith(f"{words.key_of(word)}."):
            break
    return key
