"""Completion: what a word of the command line may become, by Hydra's groups and our keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from runner.config.compose import Composer
from runner.config.layers import unresolved
from runner.config.words import option_of
from runner.core.spec import GROUPS


def complete(composer: Composer, typed: Sequence[str], word: str) -> list[str]:
    """Return what a word after these may become; `=` or `.` ends what goes on."""
    key, has_value, value = word.partition("=")
    if has_value:
        return [f"{key}={each}" for each in _values(composer, key) if each.startswith(value)]
    groups = [f"{group}=" for group in GROUPS if group.startswith(word)]
    tree: Any = unresolved(composer.composed(typed).config)
    parent, dot, _ = key.rpartition(".")
    for name in parent.split(".") if parent else []:
        tree = tree.get(name) if isinstance(tree, Mapping) else None
    names = tree if isinstance(tree, Mapping) else {}
    found = []
    for name, below in names.items():
        ending = "." if isinstance(below, Mapping) else "="
        found.append(f"{parent}{dot}{name}{ending}")
    return [*groups, *(each for each in found if each.startswith(word))]


def _values(composer: Composer, key: str) -> list[str]:
    """Return the values of a key, as far as they are known."""
    if key in GROUPS:
        return [option for option in composer.options(key) if option != "base"]
    option = option_of(key)
    kind = option.metadata["kind"] if option else ""
    if kind == "bool":
        return ["true", "false"]
    return list(kind) if isinstance(kind, tuple) else []
