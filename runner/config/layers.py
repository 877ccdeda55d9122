"""Layers of a configuration: the schema, YAML files, and overrides."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import yaml
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.types import Override
from omegaconf import OmegaConf

from runner.config.error_messages import display_path
from runner.core.model.results import Setting

KeyPath = tuple[str, ...]
"""The path to a key: its parts from the top."""


@dataclass(frozen=True)
class Layer:
    """One source of values; later layers win over earlier ones.

    Attributes:
        name: A file, an override, or "default".
        content: Its values, from the top of the configuration.
        lines: The line of every key of a file.
        override_path: The path that an override sets.
        is_deletion: Whether the override removes the key.
    """

    name: str
    content: Any
    lines: Mapping[KeyPath, int] = field(default_factory=dict)
    override_path: KeyPath = ()
    is_deletion: bool = False

    def setting(self, key_path: KeyPath) -> Setting | None:
        """Return the setting of a key in this layer, if there is one."""
        key = ".".join(key_path)
        if self.is_deletion:
            is_below = key_path[: len(self.override_path)] == self.override_path
            return Setting(self.name, key, "removed") if is_below else None
        try:
            value = value_at(self.content, key_path)
        except KeyError:
            return None
        lines = (self.lines.get(key_path[:depth]) for depth in range(len(key_path), 0, -1))
        line = next(filter(None, lines), None)
        return Setting(f"{self.name}:{line}" if line else self.name, key, one_line_yaml(value))


class DefaultsEntry(Protocol):
    """An entry of Hydra's list of defaults, as far as we read it."""

    config_path: str | None
    package: str | None


def collect_layers(
    defaults: Sequence[DefaultsEntry],
    roots: Sequence[Path],
    overrides: Sequence[tuple[str, Override]],
    records: Mapping[str, Layer],
) -> list[Layer]:
    """Return every source of values; the last one wins.

    Args:
        defaults: The configs that were merged, in order.
        roots: The folders of YAML, the first that has a file wins.
        overrides: The overrides, each with the word as it was typed.
        records: Layers for the records of runs, by config name.
    """
    config_layers = [
        records.get(entry.config_path) or _config_layer(entry, roots)
        for entry in defaults
        if entry.config_path
    ]
    return [layer for layer in config_layers if layer] + [
        _override_layer(*pair) for pair in overrides
    ]


def record_layer(file: Path, content: Any) -> Layer:
    """Return the layer of a recorded configuration, or of the part of it that counts."""
    try:
        lines = dict(_key_lines(file))
    except OSError:  # it was found on a host
        lines = {}
    return Layer(display_path(file), with_text_keys(content), lines)


def _config_layer(default: DefaultsEntry, roots: Sequence[Path]) -> Layer | None:
    path = str(default.config_path).removesuffix(".yaml")
    package = tuple(filter(None, (default.package or "").split(".")))
    if package[:1] == ("hydra",) or path.startswith("hydra/"):
        return None
    file = next((f for root in roots if (f := root / f"{path}.yaml").is_file()), None)
    if file is None:
        return Layer("default", _nest(package, _schema_defaults(path)))
    content = with_text_keys(OmegaConf.to_container(OmegaConf.load(file), resolve=False))
    if isinstance(content, dict):
        content.pop("defaults", None)
    lines = {(*package, *key_path): line for key_path, line in _key_lines(file)}
    return Layer(display_path(file), _nest(package, content), lines)


def _schema_defaults(path: str) -> Any:
    """Return the defaults that `schema.register` put into Hydra's store."""
    try:
        node = ConfigStore.instance().load(f"{path}.yaml").node
    except OSError:
        return {}
    return with_text_keys(OmegaConf.to_container(node, resolve=False))


def _override_layer(word: str, override: Override) -> Layer:
    key_path = tuple(override.key_or_group.split("."))
    name = f"command line: {word}"
    if override.is_delete():
        return Layer(name, {}, override_path=key_path, is_deletion=True)
    return Layer(name, _nest(key_path, with_text_keys(override.value())), override_path=key_path)


def _nest(key_path: KeyPath, value: Any) -> Any:
    for part in reversed(key_path):
        value = {part: value}
    return value


def _key_lines(file: Path) -> Iterator[tuple[KeyPath, int]]:
    """Yield the path and the line of every key in a YAML file."""
    loader = yaml.SafeLoader(file.read_text(encoding="utf-8"))
    try:
        root = loader.get_single_node()
        yield from _key_lines_below((), root, loader) if root is not None else ()
    finally:
        loader.dispose()


def _key_lines_below(
    key_path: KeyPath, node: yaml.Node, loader: yaml.SafeLoader
) -> Iterator[tuple[KeyPath, int]]:
    if isinstance(node, yaml.MappingNode):
        loader.flatten_mapping(node)
        for key, value in node.value:
            yield (*key_path, str(key.value)), key.start_mark.line + 1
            yield from _key_lines_below((*key_path, str(key.value)), value, loader)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            yield (*key_path, str(index)), value.start_mark.line + 1
            yield from _key_lines_below((*key_path, str(index)), value, loader)


def with_text_keys(value: Any) -> Any:
    """Return plain data with all keys as text."""
    if isinstance(value, Mapping):
        return {str(key): with_text_keys(item) for key, item in value.items()}
    return [with_text_keys(item) for item in value] if isinstance(value, list) else value


def value_at(tree: Any, key_path: KeyPath) -> Any:
    """Return the value at a path.

    Raises:
        KeyError: There is none.
    """
    for part in key_path:
        if isinstance(tree, list):
            tree = dict(enumerate(tree))[int(part) if part.isdecimal() else -1]
        elif isinstance(tree, Mapping):
            tree = tree[part]
        else:
            raise KeyError(part)
    return tree


def one_line_yaml(value: Any) -> str:
    """Return a value as YAML of one line."""
    dumped: str = yaml.safe_dump(
        value, default_flow_style=True, width=10**6, allow_unicode=True, sort_keys=False
    )
    return dumped.removesuffix("\n").removesuffix("\n...")


def leaf_paths(tree: Any, key_path: KeyPath) -> Iterator[KeyPath]:
    """Yield the path of every value below a path."""
    value = value_at(tree, key_path)
    if isinstance(value, Mapping) and value:
        for key in value:
            yield from leaf_paths(tree, (*key_path, key))
    else:
        yield key_path
