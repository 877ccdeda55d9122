"""Results of `deploy`, `clean`, `exec`, `pull` and `explain`, with equal ones of hosts merged."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from runner.core.errors import Problem
from runner.core.model.results import CommandResult, Origin, PullResult
from runner.core.text import counted, describe_exit, format_size
from runner.ui.layout import align, fold_names
from runner.ui.reports.report import code_name

K = TypeVar("K", bound=Hashable)

EXIT_LOST, EXIT_NOT_STOPPED = 4, 5
DROPPED_NOTE = "[the rest of the output was dropped]"


def _group_names(keys: Iterable[tuple[str, K]]) -> dict[K, list[str]]:
    """Return the names of each key, in the order of each key's first name."""
    groups: dict[K, list[str]] = {}
    for name, key in keys:
        groups.setdefault(key, []).append(name)
    return groups


@dataclass(frozen=True)
class PushResult:
    """The result of a deploy."""

    release: str
    commit: str  # the one it was made from, with "+" if files differ; "" without git
    files: int
    size: int  # bytes
    seconds: float
    sent: Mapping[str, int | None]  # bytes by node; None for one that had the release


def render_push(result: PushResult) -> str:
    """Return which hosts had the release, and which received it."""
    contents = f"{counted(result.files, 'file')}, {format_size(result.size)}"
    rows = [
        (fold_names(names), "had it" if sent is None else f"stored, {format_size(sent)} sent")
        for sent, names in _group_names(result.sent.items()).items()
    ]
    return "\n".join([code_name(result.release, result.commit), f"  {contents}", *align(rows)])


@dataclass(frozen=True)
class CleanResult:
    """What was removed from one host, or would be."""

    runs: tuple[str, ...]
    releases: tuple[str, ...]
    kept: tuple[str, ...]  # runs that are old enough, but in use
    size: int  # bytes on the host's disk

    @staticmethod
    def from_reply(reply: Mapping[str, Any]) -> CleanResult:
        """Return the result in a host's reply."""
        runs, releases, kept = (tuple(reply[key]) for key in ("runs", "releases", "in_use"))
        return CleanResult(runs, releases, kept, int(reply["bytes"]))


def render_clean(results: Mapping[str, CleanResult], *, dry_run: bool) -> str:
    """Return what was removed, with equal hosts merged; all names if it is a dry run."""
    lines = []
    unsized = ((name, replace(result, size=0)) for name, result in results.items())
    for result, names in _group_names(unsized).items():
        runs, releases = counted(len(result.runs), "run"), counted(len(result.releases), "release")
        verb = "would be removed" if dry_run else "removed"
        in_use = f"; in use: {', '.join(result.kept)}" if result.kept else ""
        size = format_size(sum(results[name].size for name in names))
        freed = f"{size}{' in all' if len(names) > 1 else ''}"
        lines.append(f"{fold_names(names)}: {runs} and {releases} {verb}, {freed}{in_use}")
        if dry_run:
            lines += [f"  run {name}" for name in result.runs]
            lines += [f"  release {name}" for name in result.releases]
    return "\n".join(lines)


def render_answers(results: Iterable[CommandResult]) -> str:
    """Return the outcome of a command on each host, with equal ones merged."""
    blocks = []
    outcomes = ((each.node, (_status_text(each), _output_text(each))) for each in results)
    for (status, text), names in _group_names(outcomes).items():
        count = f" ({len(names)})" if len(names) > 1 else ""
        blocks.append(f"── {fold_names(names)}{count}{status} ──")
        blocks += [text] if text else []
    return "\n".join(blocks)


def _status_text(result: CommandResult) -> str:
    if result.problem:
        return f": {result.problem}"
    if result.exit_code is not None and result.exit_code < 0:
        return f": {describe_exit(None, -result.exit_code).removeprefix('was ')}"
    return f": exit {result.exit_code}" if result.exit_code else ""


def _output_text(result: CommandResult) -> str:
    streams = (bytes(result.stdout), bytes(result.stderr))
    parts = [part.decode(errors="replace").rstrip("\n") for part in streams if part]
    return "\n".join(parts + [DROPPED_NOTE] * result.truncated)


def answers_as_data(results: Iterable[CommandResult]) -> dict[str, Any]:
    """Return the outcomes of a command as data for a program."""
    return {
        result.node: {
            "code": result.exit_code,
            "out": result.stdout.decode(errors="replace"),
            "err": result.stderr.decode(errors="replace"),
            "problem": result.problem,
            "dropped": result.truncated,
        }
        for result in results
    }


def answers_exit_code(results: Iterable[CommandResult], signum: int = 0) -> int:
    """Return the exit code: 5 if processes may be left, 4 for a lost host, 1 for a failure."""
    codes = [128 + signum if signum else 0]
    for result in results:
        is_lost = result.problem.startswith("lost")
        if result.unverified and (signum or not is_lost):
            return EXIT_NOT_STOPPED
        if not signum:
            has_failed = int(result.exit_code != 0 or bool(result.problem))
            codes.append(EXIT_LOST if is_lost else has_failed)
    return max(codes)


def render_pull(results: Mapping[str, PullResult], folder: str) -> str:
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
        if omitted := result.omitted_count:
            lines.append(f"  {name}: {omitted:,} more were left out: too many for one pull")
        if (unnamed := result.failed_count - len(result.problems)) > 0:
            lines.append(f"  {name}: {counted(unnamed, 'file')} more could not be fetched")
    return "\n".join(lines)


def _per_node_counts(results: Mapping[str, PullResult]) -> str:
    """Return the number of files per node: `gpu[1-3] 4 each, gpu4 1`."""
    groups = _group_names((name, result.new_count) for name, result in results.items())
    if len(groups) == 1:
        return fold_names(results)
    counts = (
        f"{fold_names(names)} {count or 'none'}{' each' if count and len(names) > 1 else ''}"
        for count, names in groups.items()
    )
    return ", ".join(counts)


def pull_problems(results: Mapping[str, PullResult]) -> list[Problem]:
    """Return all problems of all nodes; the hint only with the last of each node."""
    merged = []
    for result in results.values():
        merged += [Problem(problem.subject, problem.message) for problem in result.problems[:-1]]
        merged += result.problems[-1:]
    return merged


def render_origins(values: Iterable[Origin]) -> str:
    """Return each value, the place that sets it, and the places it overrides."""
    blocks = []
    for origin in values:
        blocks.append(f"{origin.key}: {origin.problem or origin.value}")
        if origin.written:
            blocks.append(f"  written as {origin.written}")
        for number, setting in enumerate(origin.settings):
            key = f" as {setting.key}" if setting.key != origin.key else ""
            overridden = "" if number == 0 else f" (overridden: {setting.value})"
            blocks.append(f"  {setting.where}{key}{overridden}")
    return "\n".join(blocks)
