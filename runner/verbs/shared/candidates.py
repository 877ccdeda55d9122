"""Candidates of a shell's completion: what the value of a parameter may become."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from runner.config.words import is_override, option_of
from runner.control.record import run_index
from runner.core.errors import ConfigError
from runner.core.spec import GROUPS
from runner.verbs import LAUNCH, verb_names

if TYPE_CHECKING:
    from runner.config.compose import Composer

PREFIXES = {"cluster": "cluster=", "run": "rerun=", "set_": "", "key": ""}
"""What makes an override of the value of an option, by the option."""


def candidates(ctx: click.Context, name: str, current: str) -> list[CompletionItem]:
    """Return what the value of a parameter may become; what ends in `=` or `.` goes on."""
    subject = getattr(ctx.command, "subject", "")
    found: list[str] = []
    if name != "words":
        found = _values(ctx, name, current)
    else:
        if ctx.command.name == LAUNCH and not ctx.params.get("words"):
            found += [verb for verb in verb_names() if verb.startswith(current)]
        if "=" not in current:
            found += _values(ctx, subject, current)
        if getattr(ctx.command, "selects_hosts", False) and subject != "key":
            found += _overrides(ctx, current)
    return [CompletionItem(each) for each in found]


def _values(ctx: click.Context, name: str, current: str) -> list[str]:
    """Return the values of an option that begin with `current`; none where none is known."""
    if name not in PREFIXES:
        return []
    prefix = PREFIXES[name]
    found = [each.removeprefix(prefix) for each in _overrides(ctx, prefix + current)]
    return [each.rstrip("=.") for each in found] if name == "key" else found


def _overrides(ctx: click.Context, current: str) -> list[str]:
    """Return the overrides that `current` may become, given those before it."""
    from runner.config.compose import open_composer

    key, has_value, _ = current.partition("=")
    if key == "rerun" and has_value:
        found = [f"rerun={run}" for run in run_index.records().values()]
        return [each for each in found if each.startswith(current)]
    given: Sequence[str] = (*(ctx.params.get("set_") or ()), *(ctx.params.get("words") or ()))
    words = [word for word in given if is_override(word)]
    if cluster := ctx.params.get("cluster"):
        words.insert(0, f"cluster={cluster}")
    with open_composer(ctx.params.get("config_dir") or ()) as composer:
        if has_value:
            found = [f"{key}={each}" for each in _values_of_key(composer, key)]
        else:
            try:
                found = _keys(composer, words, key)
            except ConfigError:  # a mistake before it
                found = _keys(composer, [], key)
    return [each for each in found if each.startswith(current)]


def _keys(composer: Composer, words: Sequence[str], key: str) -> list[str]:
    """Return the groups, and the keys beside a key."""
    tree: Any = composer.plain(words, is_resolved=False)
    *parents, _ = key.split(".")
    for name in parents:
        tree = tree.get(name) if isinstance(tree, Mapping) else None
    found = [f"{group}=" for group in GROUPS]
    for name in tree if isinstance(tree, Mapping) else ():
        ending = "." if isinstance(tree[name], Mapping) else "="
        found.append(f"{'.'.join([*parents, name])}{ending}")
    return found


def _values_of_key(composer: Composer, key: str) -> list[str]:
    if key in GROUPS:
        return [option for option in composer.files.options(key) if option != "base"]
    option = option_of(key)
    kind = option.metadata["kind"] if option else ""
    if kind == "bool":
        return ["true", "false"]
    return list(kind) if isinstance(kind, tuple) else []
