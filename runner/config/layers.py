"""What a configuration is made of: the schema, files, and words of the command line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import yaml
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.types import Override
from omegaconf import OmegaConf

from runner.config.error_messages import shown

Way = tuple[str, ...]
"""The path to a key: its parts from the top."""


@dataclass(frozen=True)
class Setting:
    """One place that sets a key.

    Attributes:
        where: "FILE:LINE", "command line: WORD", or "default".
        key: The key that stands there: not always the one asked for where ranges make nodes.
        value: What it says, as YAML.
    """

    where: str
    key: str
    value: str


@dataclass(frozen=True)
class Layer:
    """One source of values: later layers lie over earlier ones.

    Attributes:
        name: A file, a word of the command line, or "default".
        content: What it says, from the top of the configuration.
        lines: The line of every key, where it is a file.
        word: The path that a word of the command line names.
        deletes: Whether that word takes the key out.
    """

    name: str
    content: Any
    lines: Mapping[Way, int] = field(default_factory=dict)
    word: Way = ()
    deletes: bool = False

    def setting(self, way: Way) -> Setting | None:
        """Return what it says of a key, if it does."""
        key = ".".join(way)
        if self.deletes:
            hit = way[: len(self.word)] == self.word
            return Setting(self.name, key, "taken out") if hit else None
        try:
            value = at(self.content, way)
        except KeyError:
            return None
        lines = (self.lines.get(way[:depth]) for depth in range(len(way), 0, -1))
        line = next(filter(None, lines), None)
        return Setting(f"{self.name}:{line}" if line else self.name, key, text(value))


class Default(Protocol):
    """An entry of Hydra's list of defaults, as far as we read it."""

    config_path: str | None
    package: str | None


def layers(
    defaults: Sequence[Default],
    roots: Sequence[Path],
    overrides: Sequence[tuple[str, Override]],
    records: Mapping[str, Layer],
) -> list[Layer]:
    """Return everything that sets values, the last one wins.

    Args:
        defaults: The configs that were merged, in order.
        roots: The folders of YAML, the first that has a file wins.
        overrides: What the command line sets, with the words as they were typed.
        records: What stands for configs of those names: records of runs.
    """
    found = [
        records.get(each.config_path) or _of_config(each, roots)
        for each in defaults
        if each.config_path
    ]
    return [layer for layer in found if layer] + [_of_word(*pair) for pair in overrides]


def of_record(file: Path, content: Any) -> Layer:
    """Return what a recorded configuration says, or the part of it that counts."""
    try:
        lines = dict(_lines(file))
    except OSError:  # it was found on a host
        lines = {}
    return Layer(shown(file), normal(content), lines)


def _of_config(default: Default, roots: Sequence[Path]) -> Layer | None:
    path = str(default.config_path).removesuffix(".yaml")
    package = tuple(filter(None, (default.package or "").split(".")))
    if package[:1] == ("hydra",) or path.startswith("hydra/"):
        return None
    file = next((f for root in roots if (f := root / f"{path}.yaml").is_file()), None)
    if file is None:
        return Layer("default", _nested(package, _schema(path)))
    content = normal(OmegaConf.to_container(OmegaConf.load(file), resolve=False))
    if isinstance(content, dict):
        content.pop("defaults", None)
    lines = {(*package, *way): line for way, line in _lines(file)}
    return Layer(shown(file), _nested(package, content), lines)


def _schema(path: str) -> Any:
    """Return the defaults of what `schema.register` put into Hydra's store."""
    try:
        node = ConfigStore.instance().load(f"{path}.yaml").node
    except OSError:
        return {}
    return normal(OmegaConf.to_container(node, resolve=False))


def _of_word(word: str, override: Override) -> Layer:
    way = tuple(override.key_or_group.split("."))
    name = f"command line: {word}"
    if override.is_delete():
        return Layer(name, {}, word=way, deletes=True)
    return Layer(name, _nested(way, normal(override.value())), word=way)


def _nested(way: Way, value: Any) -> Any:
    for part in reversed(way):
        value = {part: value}
    return value


def _lines(file: Path) -> Iterator[tuple[Way, int]]:
    """Yield the path and the line of every key in a YAML file."""
    loader = yaml.SafeLoader(file.read_text(encoding="utf-8"))
    try:
        root = loader.get_single_node()
        yield from _lines_below((), root, loader) if root is not None else ()
    finally:
        loader.dispose()


def _lines_below(way: Way, node: yaml.Node, loader: yaml.SafeLoader) -> Iterator[tuple[Way, int]]:
    if isinstance(node, yaml.MappingNode):
        loader.flatten_mapping(node)
        for key, value in node.value:
            yield (*way, str(key.value)), key.start_mark.line + 1
            yield from _lines_below((*way, str(key.value)), value, loader)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            yield (*way, str(index)), value.start_mark.line + 1
            yield from _lines_below((*way, str(index)), value, loader)


def normal(value: Any) -> Any:
    """Return plain data whose keys are all texts."""
    if isinstance(value, Mapping):
        return {str(key): normal(item) for key, item in value.items()}
    return [normal(item) for item in value] if isinstance(value, list) else value


def at(tree: Any, way: Way) -> Any:
    """Return what is there.

    Raises:
        KeyError: Nothing is.
    """
    for part in way:
        if isinstance(tree, list):
            tree = dict(enumerate(tree))[int(part) if part.isdecimal() else -1]
        elif isinstance(tree, Mapping):
            tree = tree[part]
        else:
            raise KeyError(part)
    return tree


def text(value: Any) -> str:
    """Return a value as YAML of one line."""
    dumped: str = yaml.safe_dump(
        value, default_flow_style=True, width=10**6, allow_unicode=True, sort_keys=False
    )
    return dumped.removesuffix("\n").removesuffix("\n...")


def leaves(tree: Any, way: Way) -> Iterator[Way]:
    """Yield the path of every value below a path."""
    here = at(tree, way)
    if isinstance(here, Mapping) and here:
        for key in here:
            yield from leaves(tree, (*way, key))
    else:
        yield way
