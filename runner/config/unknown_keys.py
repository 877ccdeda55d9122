"""Unknown keys: the error of a key that the schema does not have, with the key that is meant."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from runner.config.schema import SECTIONS, RunnerConfig
from runner.config.validation import unknown_key
from runner.core.errors import Problem

REPLACED_KEYS = {
    "on_disconnect": ("disconnect_s", "disconnect_s=never keeps a run going without a launch"),
    "cluster.deploy": ("cluster.project", "null pushes the code; a path, such as `.`, does not"),
    "check": ("skip_checks", "such as skip_checks=[gpus]"),
    "logs": ("console_ranks", "such as console_ranks=[0,3]"),
    "outputs": ("pull_outputs", "auto or never"),
    "stop": ("grace_s", "such as grace_s=30"),
}
"""Keys and sections of earlier versions: what each is now, and a hint."""


def unknown_keys(
    values: Mapping[str, Any], schema: type = RunnerConfig, where: str = ""
) -> Iterator[Problem]:
    """Yield a problem for each key that the schema does not have."""
    fields: dict[str, Any] = {f.name: f.default_factory for f in dataclasses.fields(schema)}
    for key, value in values.items():
        nested = fields.get(key)
        if key not in fields:
            yield unknown_schema_key(where, key, list(fields), value)
        elif isinstance(nested, type) and dataclasses.is_dataclass(nested):
            yield from unknown_keys(value, nested, f"{where}.{key}" if where else key)


def unknown_schema_key(where: str, key: str, legal: Sequence[str], value: object = None) -> Problem:
    """Return the problem of an unknown key, with the section where it may belong."""
    full_key = f"{where}.{key}" if where else key
    if full_key in REPLACED_KEYS:
        new_key, hint = REPLACED_KEYS[full_key]
        inner = f".{next(iter(value))}" if isinstance(value, Mapping) and value else ""
        return Problem(full_key + inner, f"this key is now {new_key}", hint)
    problem = unknown_key(where, key, legal)
    return (
        problem
        if problem.hint or where
        else dataclasses.replace(problem, hint=_suggest_section(key))
    )


def _suggest_section(key: str) -> str:
    """Return a hint for a key that is unknown at the top level."""
    sections = (name for name in SECTIONS if name and "NODE" not in name)
    candidates = [
        f"{name}.{key}"
        for name in sections
        if key in {field.name for field in dataclasses.fields(SECTIONS[name])}
    ]
    return (
        f"did you mean {candidates[0]}?"
        if candidates
        else f"if it is for the program: task.args.{key}=…"
    )
