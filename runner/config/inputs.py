"""What was composed, as those who check it are given it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class SpecInputs:
    """Composed values, and what else decides what they mean.

    Attributes:
        values: The configuration, resolved; every key of the schema is there.
        cluster: The name of the cluster's YAML file.
        task: The name of the task's.
        cwd: The folder the user stands in.
        environ: The user's environment.
        node_overrides: The paths below `cluster.nodes` that the command line sets.
        known_entries: The entries `cluster.nodes` may have; None for whatever it has.
    """

    values: Mapping[str, Any]
    cluster: str
    task: str
    cwd: str
    environ: Mapping[str, str]
    node_overrides: Sequence[tuple[str, ...]] = ()
    known_entries: Sequence[str] | None = None
