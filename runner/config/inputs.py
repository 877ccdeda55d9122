"""Composed values: the input of validation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class SpecInputs:
    """Composed values and their context.

    Attributes:
        values: The configuration, resolved; every key of the schema is there.
        cluster: The name of the cluster's YAML file.
        task: The name of the task's.
        cwd: The working directory.
        environ: The user's environment.
        node_overrides: The paths below `cluster.nodes` that are overridden.
        known_entries: The legal entries of `cluster.nodes`; None for any.
    """

    values: Mapping[str, Any]
    cluster: str
    task: str
    cwd: str
    environ: Mapping[str, str]
    node_overrides: Sequence[tuple[str, ...]] = ()
    known_entries: Sequence[str] | None = None
