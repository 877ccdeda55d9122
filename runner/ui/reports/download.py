"""The report of a download: files, bytes and problems per node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from runner.core.codec import encode
from runner.core.errors import Problem
from runner.core.model.results import PullResult
from runner.core.text import counted, format_size
from runner.ui.node_names import fold_names


def summary(results: Mapping[str, PullResult], folder: str) -> str:
    """Return what was and was not downloaded; nodes with equal counts share an entry."""
    total = sum(result.new_count for result in results.values())
    size = sum(result.fetched_bytes for result in results.values())
    if total:
        counts = _per_node_counts(results)
        lines = [f"pulled {counted(total, 'file')}, {format_size(size)}, into {folder} ({counts})"]
    elif existing := sum(result.existing_count for result in results.values()):
        lines = [f"nothing new; {counted(existing, 'file')} in {folder}"]
    else:
        lines = ["nothing was pulled"]
    for name, result in results.items():
        lines += [f"  {name}: {note}" for note in result.notes]
        if result.omitted_count:
            lines.append(
                f"  {name}: {result.omitted_count:,} more were left out: too many for one pull"
            )
        if (unnamed := result.failed_count - len(result.problems)) > 0:
            lines.append(f"  {name}: {counted(unnamed, 'file')} more could not be fetched")
    return "\n".join(lines)


def problems(results: Mapping[str, PullResult]) -> Sequence[Problem]:
    """Return all problems of all nodes; the hint only with the last of each node."""
    merged = []
    for result in results.values():
        merged += [Problem(problem.subject, problem.message) for problem in result.problems[:-1]]
        merged += result.problems[-1:]
    return merged


def as_data(results: Mapping[str, PullResult]) -> dict[str, Any]:
    """Return the results as data for a program."""
    return {name: encode(result) for name, result in results.items()}


def _per_node_counts(results: Mapping[str, PullResult]) -> str:
    """Return the number of files per node: `gpu[1-3] 4 each, gpu4 1`."""
    groups: dict[int, list[str]] = {}
    for name, result in results.items():
        groups.setdefault(result.new_count, []).append(name)
    if len(groups) == 1:
        return fold_names(results)
    counts = (
        f"{fold_names(names)} {count or 'none'}{' each' if count and len(names) > 1 else ''}"
        for count, names in groups.items()
    )
    return ", ".join(counts)
