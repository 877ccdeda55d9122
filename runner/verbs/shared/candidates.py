"""Candidates of a shell's completion: what the value of a parameter may become."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import click
from click.shell_completion import CompletionItem

from runner.config.words import is_override
from runner.control.record import run_index
from runner.core.errors import ConfigError
from runner.verbs import LAUNCH, verb_names


def candidates(ctx: click.Context, name: str, current: str) -> list[CompletionItem]:
    """Return what the value of a parameter may become; what ends in `=` or `.` goes on."""
    subject = getattr(ctx.command, "subject", "")
    if name == "words":
        found = [] if "=" in current or not subject else _values(ctx, subject, current)
        if ctx.command.name == LAUNCH and not ctx.params.get("words"):
            found += [verb for verb in verb_names() if verb.startswith(current)]
        if getattr(ctx.command, "selects_hosts", False) and subject != "key":
            found += _overrides(ctx, current)
    else:
        found = _values(ctx, name, current)
    return [CompletionItem(each) for each in found]


def _values(ctx: click.Context, name: str, current: str) -> list[str]:
    """Return the values of a flag that begin with `current`; where none is known, no value."""
    if name == "cluster":
        prefix = "cluster="
        found = [each.removeprefix(prefix) for each in _overrides(ctx, prefix + current)]
        return found + _run_ids(current) if ctx.command.name == "top" else found
    if name == "run":
        return _run_ids(current)
    if name == "set_":
        return _overrides(ctx, current)
    if name == "key":
        return [each.rstrip("=.") for each in _overrides(ctx, current)]
    return []


def _overrides(ctx: click.Context, current: str) -> list[str]:
    """Return the overrides that `current` may become, given those before it."""
    key, has_value, value = current.partition("=")
    if key == "rerun" and has_value:
        return [f"rerun={run}" for run in _run_ids(value)]
    from runner.config.complete import complete as complete_word
    from runner.config.compose import open_composer

    given: Sequence[str] = (*(ctx.params.get("set_") or ()), *(ctx.params.get("words") or ()))
    words = [word for word in given if is_override(word)]
    if cluster := ctx.params.get("cluster"):
        words.insert(0, f"cluster={cluster}")
    with open_composer(ctx.params.get("config_dir") or ()) as composer:
        with contextlib.suppress(ConfigError):  # a mistake before it
            return complete_word(composer, words, current)
        return complete_word(composer, [], current)


def _run_ids(current: str) -> list[str]:
    """Return the runs on record on this machine, the newest first."""
    return [run for run in run_index.records().values() if run.startswith(current)]
