"""Explain: which files and words set a key; the last one wins."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from runner.config.compose import Composer
from runner.config.kinds import Problems, legal_values, unknown_key
from runner.config.layers import (
    Composed,
    Layer,
    layers_of,
    plain_values,
    unresolved,
    unresolved_problem,
    value_at,
)
from runner.config.source import KeyPath, one_line
from runner.config.words import option_of, plain
from runner.core.errors import ConfigError, Problem, suggest
from runner.core.results import Origin, Setting
from runner.core.spec import section_of, written_default


def origins(composer: Composer, typed: Sequence[str], key: str) -> list[Origin]:
    """Return where a value comes from, or every value below a key; raise ConfigError for none."""
    composed = composer.composed(typed)
    if composed.config.get("run_id") is None:
        composed.config.run_id = "RUN_ID"
    tree = unresolved(composed.config)
    layers = layers_of(composed)
    path, value = _locate(tree, key)
    return [_origin(composed, layers, leaf, tree) for leaf in _leaves(value, path)]


def value_below(tree: Any, key: str) -> Any:
    """Return what stands at a key of plain data; raise ConfigError if there is no such key."""
    return _locate(tree, key)[1]


def _locate(tree: Any, key: str) -> tuple[KeyPath, Any]:
    """Return the path of a key, whose parts may contain dots, and what stands there."""
    path: KeyPath = ()
    parts = key.split(".") if key else []
    while parts:
        below = tree if isinstance(tree, Mapping) else {}
        if isinstance(tree, list):
            below = {str(index): item for index, item in enumerate(tree)}
        names = (".".join(parts[:count]) for count in range(len(parts), 0, -1))
        name = next((each for each in names if each in below), None)
        if name is None:
            raise ConfigError([_unknown(".".join(path), parts[0], list(below))])
        path = (*path, name)
        parts = parts[name.count(".") + 1 :]
        tree = below[name]
    return path, tree


def _unknown(where: str, name: str, legal: Sequence[str]) -> Problem:
    if not legal:
        return Problem(f"{where}.{name}", f"there is nothing below {where}")
    if where == "cluster.nodes":
        message = f"there is no node {name}; the entries are {', '.join(legal)}"
        return Problem(f"{where}.{name}", message, suggest(name, legal, f"{where}."))
    return unknown_key(where, name, legal)


def _leaves(value: Any, path: KeyPath) -> Iterator[KeyPath]:
    """Yield the path of every value below a path."""
    if isinstance(value, Mapping) and value:
        for name, below in value.items():
            yield from _leaves(below, (*path, name))
    else:
        yield path


def _origin(composed: Composed, layers: Sequence[Layer], path: KeyPath, tree: Any) -> Origin:
    key = ".".join(path)
    settings = []
    for layer in reversed(layers):
        if value_at(layer.content, path):
            line = layer.line(path)
            where = f"{layer.place}:{line}" if line else layer.place
            settings.append(Setting(where, _text(layer.content, path)))
    option = option_of(key)
    if option is not None and section_of(option) is None:
        settings.append(Setting("default", one_line(plain(written_default(option)))))
    written = _text(tree, path)
    meaning = f"{option.metadata['help']} ({legal_values(option)})" if option else ""
    problems = Problems()
    value = written
    try:
        node: Any = composed.config
        for name in path:
            node = node[int(name)] if OmegaConf.is_list(node) else node[name]
        value = one_line(plain(_masked(composed, plain_values(node, key, problems))))
    except OmegaConfBaseException as error:
        problems.append(unresolved_problem(key, error))
    if problems:
        return Origin(key, written, "", tuple(settings), problems[0].message, meaning)
    return Origin(key, value, "" if value == written else written, tuple(settings), "", meaning)


def _text(content: Any, path: KeyPath) -> str:
    found = value_at(content, path)
    return one_line(found[0]) if found else ""


def _masked(composed: Composed, value: Any) -> Any:
    """Return a value without the texts of secrets that are in this shell's environment."""
    if isinstance(value, Mapping):
        return {name: _masked(composed, item) for name, item in value.items()}
    if isinstance(value, list):
        return [_masked(composed, item) for item in value]
    names = composed.config.cluster.get("secrets") or []
    for name in [names] if isinstance(names, str) else names:
        secret = os.environ.get(str(name))
        if secret and isinstance(value, str):
            value = value.replace(secret, "***")
    return value
