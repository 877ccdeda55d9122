"""Tables that verbs print, with equal rows of many hosts merged."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from runner.core.model.results import CommandResult, Origin
from runner.core.text import counted, describe_exit, format_size
from runner.ui.node_names import fold_names
from runner.ui.reports.columns import align
from runner.ui.reports.report import code_name

T = TypeVar("T")


@dataclass(frozen=True)
class PushResult:
    """The result of a deploy.

    Attributes:
        release: The hash of the release.
        commit: The commit it was made from, with "+" if files differ; "" without git.
        files: The number of its files.
        size: Their size in bytes.
        seconds: The duration of the push to all hosts that lacked it.
        sent: Bytes sent, by node; None for one that had the release.
    """

    release: str
    commit: str
    files: int
    size: int
    seconds: float
    sent: Mapping[str, int | None]


@dataclass(frozen=True)
class CleanResult:
    """What was removed from one host, or would be.

    Attributes:
        runs: The ids of runs.
        releases: The hashes of releases.
        kept: Runs that are old enough, but in use.
        size: Bytes on the host's disk.
    """

    runs: tuple[str, ...]
    releases: tuple[str, ...]
    kept: tuple[str, ...]
    size: int

    @staticmethod
    def from_reply(reply: Mapping[str, Any]) -> CleanResult:
        """Return the result in a host's reply."""
        return CleanResult(
            tuple(reply["runs"]),
            tuple(reply["releases"]),
            tuple(reply["in_use"]),
            int(reply["bytes"]),
        )


def render_clean(results: Mapping[str, CleanResult], *, dry_run: bool) -> str:
    """Return what was removed, with equal hosts merged; all names if it is a dry run."""
    lines = []
    for result, names in _group_names(
        results.items(), lambda item: replace(item[1], size=0), lambda item: item[0]
    ):
        removed = (
            f"{counted(len(result.runs), 'run')} and {counted(len(result.releases), 'release')}"
        )
        verb = "would be removed" if dry_run else "removed"
        in_use = f"; in use: {', '.join(result.kept)}" if result.kept else ""
        size = format_size(sum(results[name].size for name in names))
        freed = f"{size}{' in all' if len(names) > 1 else ''}"
        lines.append(f"{fold_names(names)}: {removed} {verb}, {freed}{in_use}")
        if dry_run:
            lines += [f"  run {name}" for name in result.runs]
            lines += [f"  release {name}" for name in result.releases]
    return "\n".join(lines)


def render_push(result: PushResult) -> str:
    """Return which hosts had the release, and which received it."""
    contents = f"{counted(result.files, 'file')}, {format_size(result.size)}"
    title = f"{code_name(result.release, result.commit)}\n  {contents}"
    rows = [
        (fold_names(names), "had it" if sent is None else f"stored, {format_size(sent)} sent")
        for sent, names in _group_names(
            result.sent.items(), lambda item: item[1], lambda item: item[0]
        )
    ]
    return "\n".join([title, *align(rows)])


def render_answers(results: Iterable[CommandResult]) -> str:
    """Return the outcome on each host, with equal ones merged."""
    blocks = []
    for (status, text), names in _group_names(
        results,
        lambda result: (_status_text(result), _output_text(result)),
        lambda result: result.node,
    ):
        count = f" ({len(names)})" if len(names) > 1 else ""
        blocks.append(f"── {fold_names(names)}{count}{status} ──")
        blocks += [text] if text else []
    return "\n".join(blocks)


def as_data(results: Iterable[CommandResult]) -> dict[str, Any]:
    """Return the results as data for a program."""
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


def exit_code(results: Iterable[CommandResult], signum: int = 0) -> int:
    """Return the exit code: 5 if processes may be left, 4 for a lost host, 1 for a failure."""
    codes = [128 + signum if signum else 0]
    for result in results:
        is_lost = result.problem.startswith("lost")
        if result.unverified and (signum or not is_lost):
            return EXIT_NOT_STOPPED
        if not signum:
            codes.append(
                EXIT_LOST if is_lost else int(result.exit_code != 0 or bool(result.problem))
            )
    return max(codes)


EXIT_LOST, EXIT_NOT_STOPPED = 4, 5


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


def _status_text(result: CommandResult) -> str:
    if result.problem:
        return f": {result.problem}"
    if result.exit_code is not None and result.exit_code < 0:
        return f": {describe_exit(None, -result.exit_code).removeprefix('was ')}"
    return f": exit {result.exit_code}" if result.exit_code else ""


DROPPED_NOTE = "[the rest of the output was dropped]"


def _output_text(result: CommandResult) -> str:
    streams = (bytes(result.stdout), bytes(result.stderr))
    parts = [part.decode(errors="replace").rstrip("\n") for part in streams if part]
    return "\n".join(parts + [DROPPED_NOTE] * result.truncated)


K = TypeVar("K", bound=Hashable)


def _group_names(
    items: Iterable[T], key: Callable[[T], K], name: Callable[[T], str]
) -> list[tuple[K, list[str]]]:
    """Group the names of items by key, in the order of each key's first item."""
    groups: dict[K, list[str]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(name(item))
    return list(groups.items())
